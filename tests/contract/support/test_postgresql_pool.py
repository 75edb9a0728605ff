"""A PostgreSQL database that is used again has no trace of the test before."""

import psycopg
import pytest
from sqlalchemy import create_engine, make_url, text

from celery_dynbeat.db.names import VERSION_TABLE
from tests.support.applications import MINUTELY, application
from tests.support.databases import administration
from tests.support.postgresql_pool import TABLES, PostgreSQLPool


@pytest.fixture
def pool(postgresql_server, postgresql_template):
    made = PostgreSQLPool(postgresql_server.url, postgresql_template)
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


def test_all_tables_but_that_of_the_version_are_emptied(pool):
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    with pool.database() as url, administration(url) as connection:
        assert {*connection.scalars(text(tables))} == {*TABLES, VERSION_TABLE}


def test_tests_at_the_same_time_get_databases_of_their_own(pool):
    with pool.database() as first, pool.database() as second:
        assert first != second


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE other (id integer)",
        "DROP TABLE dynbeat_hold",
        "DROP TABLE dynbeat_alembic_version",
        "ALTER TABLE dynbeat_run ADD COLUMN other integer",
        "ALTER TABLE dynbeat_run ALTER COLUMN owner DROP NOT NULL",
        "ALTER TABLE dynbeat_run DISABLE TRIGGER ALL",
        "CREATE INDEX other ON dynbeat_run (owner)",
        "GRANT SELECT ON dynbeat_run TO public",
        "CREATE FUNCTION other() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "UPDATE dynbeat_alembic_version SET version_num = version_num",
        "ANALYZE dynbeat_schedule",
        "INSERT INTO dynbeat_change (id) SELECT 1 WHERE false",
    ],
)
def test_only_a_database_with_nothing_but_rows_is_used_again(pool, change):
    with pool.database() as first:
        use(first)
        with administration(first) as connection:
            connection.execute(text(change))

    with pool.database() as second:
        assert (second == first) == change.startswith("INSERT")


def test_a_database_setting_is_not_used_again(pool):
    with pool.database() as first, administration(first) as connection:
        name = make_url(first).database
        connection.execute(text(f"ALTER DATABASE {name} SET work_mem = '1MB'"))

    with pool.database() as second:
        assert second != first


def test_a_database_with_large_tables_is_not_used_again(pool):
    with pool.database() as first, administration(first) as connection:
        rows = "SELECT 'user:' || n, 'UTC' FROM generate_series(1, 10000) n"
        connection.execute(text(f"INSERT INTO dynbeat_owner (owner, timezone) {rows}"))
        connection.execute(text("DELETE FROM dynbeat_owner"))

    with pool.database() as second:
        assert second != first


def test_a_database_with_an_open_session_is_not_used_again(pool):
    with pool.database() as first:
        engine = create_engine(first)
        session = engine.connect()
        session.rollback()

    with pool.database() as second:
        assert second != first
    # The server ended the session.
    session.invalidate()
    engine.dispose()


def test_an_open_transaction_fails_the_test_that_left_it(pool):
    open_connections = []

    def leave_open():
        with pool.database() as url:
            address = make_url(url).set(drivername="postgresql").render_as_string()
            open_connections.append(psycopg.connect(address))
            open_connections[0].execute("SELECT 1")

    with pytest.raises(AssertionError, match="left in a transaction"):
        leave_open()
    open_connections[0].close()
