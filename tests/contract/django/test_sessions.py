"""Calls join Django's ``transaction.atomic()``: they commit and roll back with it."""

from importlib.util import find_spec

import pytest
from sqlalchemy import make_url

from tests.support.django_project import PROBES, seen_by_project

pytestmark = pytest.mark.empty_database

needs_mysqlclient = pytest.mark.skipif(
    find_spec("MySQLdb") is None, reason="mysqlclient is not installed"
)


@pytest.fixture(
    params=[
        ("sqlite", True, ""),
        ("postgresql", True, ""),
        ("postgresql", False, ""),
        ("mariadb", True, "mysql+pymysql"),
        pytest.param(("mariadb", False, "mysql+mysqldb"), marks=needs_mysqlclient),
    ],
    ids=["sqlite", "postgresql", "postgresql-without-use-tz", "pymysql", "mysqlclient"],
    scope="module",
)
def backend(request):
    return request.param


@pytest.fixture
def seen(request, backend):
    name, use_tz, driver = backend
    url = make_url(request.getfixturevalue(f"{name}_url"))
    url = url.set(drivername=driver) if driver else url
    return seen_by_project(url.render_as_string(hide_password=False), use_tz=use_tz)


@pytest.mark.quick("sqlite")
def test_a_schedule_commits_and_rolls_back_with_the_rows_of_the_project(seen, backend):
    found = seen["joined"]

    assert found["names"] == [["kept", "outer", "outer2", "outer3"]] * 2
    assert found["description"] == "new"
    # Beat is notified once after each of the three commits, and never of what was rolled back.
    assert found["during"] == 0
    assert found["notifications"] == [True] * 3
    assert found["read"] == [[{"a": 1}], ["x"], True]
    assert found["is_aware"]
    assert found["probe"] == PROBES[backend[0].replace("mariadb", "mysql")][1]

    # A call that the database refuses leaves nothing, and the transaction continues.
    found = seen["refused"]
    assert found["error"].endswith("Error")
    assert found["names"] == [["after", "before"], ["after", "before", "refused"]]

    # One callback for the changes of a transaction, and one for those of its savepoint.
    found = seen["registered"]
    assert (found["reads"], found["changes"], found["savepoint"]) == (0, 1, 2)
    assert (found["rolled back"], found["later notifications"]) == (0, 1)
    assert found["notifications"] == 2
    assert found["names"] == ["inner0", "inner1", *(f"n{n}" for n in range(9))]

    if backend[0] == "mariadb":
        found = seen["deadlocked"]
        assert found["error"] == "TransactionRolledBackError"
        assert (found["needs rollback"], found["next"]) == (True, "TransactionManagementError")
        assert found["names"] == [["a", "b"]] * 2
    if backend[0] == "sqlite":
        found = seen["mismatched"]
        assert "current_session joins a transaction of the database" in found["error"]
        for name in ("alias", "autocommit"):
            assert found[name].startswith("a transaction of Django's database 'default' is open")
        assert found["other"].startswith("a transaction of Django's database 'other' is open")
        assert found["both"] == ""
        assert "use AsyncDynbeat" in found["async"]
        assert found["names"] == []
