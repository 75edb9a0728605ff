"""The application of a test leaves no connection open."""

import pytest
from sqlalchemy import event

from tests.support.applications import application


def fail_after_a_query(url, closed):
    with application(url) as dynbeat:
        event.listen(dynbeat.context.database.engine, "close", lambda *_: closed.append(True))
        dynbeat.context.prepare()
        raise ValueError


def test_the_connections_of_a_test_that_fails_are_closed(postgresql_url):
    closed = []

    with pytest.raises(ValueError, match=r"^$"):
        fail_after_a_query(postgresql_url, closed)

    assert closed
