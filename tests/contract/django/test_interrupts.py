"""A transaction of Django whose call was interrupted does not commit a part of the call."""

import pytest
from sqlalchemy import make_url

from tests.support.django_interrupts import seen_after_interrupts

pytestmark = pytest.mark.empty_database

BROKEN = "TransactionManagementError"


@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "mariadb"])
def test_a_transaction_rolls_back_after_a_call_that_was_interrupted(request, backend):
    url = make_url(request.getfixturevalue(f"{backend}_url"))
    url = url.set(drivername="mysql+pymysql") if backend == "mariadb" else url

    seen = seen_after_interrupts(url.render_as_string(hide_password=False))

    names = ["Timeout", "KeyboardInterrupt", "SoftTimeLimitExceeded"]
    # The error that ends the call is not hidden by one of the rollback.
    assert [found["call"] for found in seen] == names
    if backend == "sqlite":
        # An Exception after the statement leaves the connection as it is: the savepoint undid it.
        undone = seen.pop()
        assert (undone["next call"], undone["next query"]) == (None, None)
        assert undone["names"] == [["next"], ["half", "next", "next"]]
    for found in seen:
        assert (found["next call"], found["next query"]) == (BROKEN, BROKEN)
        assert found["names"] == [[], []]
