"""``migrate`` creates the tables, and tests of a project use Django's test databases."""

import pytest
from sqlalchemy import make_url

from tests.support.django_test_run import seen_by_tests

pytestmark = pytest.mark.empty_database


@pytest.mark.parametrize(
    ("backend", "driver"),
    [("sqlite", ""), ("postgresql", ""), ("mariadb", "mysql+pymysql")],
    ids=["sqlite", "postgresql", "mariadb"],
)
def test_tests_of_a_project_touch_only_its_test_databases(request, backend, driver):
    url = make_url(request.getfixturevalue(f"{backend}_url"))
    url = url.set(drivername=driver) if driver else url

    seen = seen_by_tests(url.render_as_string(hide_password=False))

    # The second time there is nothing to upgrade.
    assert seen["migrate"] == [True, False]
    assert "DATABASES has no alias 'typo'" in seen["checked"][0]
    # A test without a test database does not reach the real one.
    (refused,) = seen["refused"]
    assert "Database queries to 'default' are not allowed in SimpleTestCase" in refused
    assert seen["tables"] == []
    # A database in memory has no clone: each process of parallel tests copies it with the fork.
    assert seen["clone"] == (["outside"] if backend == "sqlite" else [])
    # A TestCase rolls back, and its calls see their own rows.
    assert seen["failures"] == []
    assert seen["inside"] == ["earlier", "inside", "outside"]
    assert seen["after"] == seen["async"] == ["outside"]
    # Another connection would not see the rows of a TestCase, and leave its own.
    errors = seen["errors"]
    for name in ("asyncio.run", "asynchronous test", "ManualBeat"):
        assert errors[name].startswith("this TestCase rolls back its transaction on Django's")
    for name in ("unmarked", "unmarked asyncio.run", "unmarked asynchronous test"):
        assert "to 'default' are not allowed in SimpleTestCase" in errors[name]
    assert (errors["committed"], seen["leaked"]) == ("committed, outside", [])
    # Of the second call of the transaction.
    assert seen["callbacks"] == 1
    assert seen["real"] == ["real"]
