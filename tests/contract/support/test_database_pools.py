"""A database of a server that is used again has no trace of the test before."""

import pytest
from sqlalchemy import text

from tests.support.applications import MINUTELY, application
from tests.support.database_pools import TABLES, MariaDBPool, PostgreSQLPool
from tests.support.databases import administration

#: A statement that changes only rows, and statements that change more.
ONLY_ROWS = "DELETE FROM dynbeat_change"
CHANGES = (
    ONLY_ROWS,
    "CREATE TABLE other (id integer)",
    "ALTER TABLE dynbeat_run ADD COLUMN other integer",
    "UPDATE dynbeat_alembic_version SET version_num = 'other'",
)


@pytest.fixture(params=["postgresql", "mariadb"])
def pool(request):
    kind = PostgreSQLPool if request.param == "postgresql" else MariaDBPool
    server, template = (
        request.getfixturevalue(f"{request.param}_{part}") for part in ("server", "template")
    )
    made = kind(server.url, template)
    yield made
    made.close()


def use(url):
    """Write rows, and return the id of the first schedule."""
    with application(url) as dynbeat:
        mine = dynbeat.schedules.for_owner("user:1")
        mine.create("used", task="t", trigger=MINUTELY)
        mine.run_now("used")
        with dynbeat.context.database.engine.connect() as connection:
            return connection.scalar(text("SELECT id FROM dynbeat_schedule"))


def counts(url):
    with administration(url) as connection:
        return {table: connection.scalar(text(f"SELECT count(*) FROM {table}")) for table in TABLES}


def test_the_next_test_gets_the_same_database_without_rows_and_with_the_first_ids(pool):
    with pool.database() as first:
        assert use(first) == 1
        assert any(counts(first).values())

    with pool.database() as second:
        assert second == first
        assert not any(counts(second).values())
        assert use(second) == 1


@pytest.mark.parametrize("change", CHANGES)
def test_only_a_database_with_nothing_but_rows_is_used_again(pool, change):
    with pool.database() as first:
        use(first)
        with administration(first) as connection:
            connection.execute(text(change))

    with pool.database() as second:
        assert (second == first) == (change == ONLY_ROWS)
