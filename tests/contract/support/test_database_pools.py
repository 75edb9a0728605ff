"""A database of a server that is used again has no trace of the test before."""

import psycopg
import pymysql
import pytest
from sqlalchemy import create_engine, make_url, text

from celery_dynbeat.db import VERSION_TABLE
from tests.support.applications import MINUTELY, application
from tests.support.database_pools import TABLES, MariaDBPool, PostgreSQLPool
from tests.support.databases import administration

#: A statement that changes only rows, and statements that change more.
ONLY_ROWS = "DELETE FROM dynbeat_change"
CHANGES = (
    "CREATE TABLE other (id integer)",
    "CREATE VIEW other AS SELECT owner FROM dynbeat_run",
    "DROP TABLE dynbeat_hold",
    "DROP TABLE dynbeat_alembic_version",
    "ALTER TABLE dynbeat_run ADD COLUMN other integer",
    "CREATE INDEX other ON dynbeat_run (owner)",
    "UPDATE dynbeat_alembic_version SET version_num = 'other'",
    ONLY_ROWS,
)
POSTGRESQL_CHANGES = (
    "ALTER TABLE dynbeat_run ALTER COLUMN owner DROP NOT NULL",
    "ALTER TABLE dynbeat_run DISABLE TRIGGER ALL",
    "GRANT SELECT ON dynbeat_run TO public",
    "CREATE FUNCTION other() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    "UPDATE dynbeat_alembic_version SET version_num = version_num",
    "ANALYZE dynbeat_schedule",
)
MARIADB_CHANGES = (
    "ALTER TABLE dynbeat_run MODIFY task text",
    "ALTER TABLE dynbeat_run COMMENT 'other'",
    "CREATE FUNCTION other() RETURNS integer DETERMINISTIC RETURN 1",
    "CREATE TRIGGER other BEFORE DELETE ON dynbeat_run FOR EACH ROW SET @deleted = 1",
    "ALTER DATABASE CHARACTER SET latin1",
)


@pytest.fixture
def postgresql(postgresql_server, postgresql_template):
    made = PostgreSQLPool(postgresql_server.url, postgresql_template)
    yield made
    made.close()


@pytest.fixture
def mariadb(mariadb_server, mariadb_template):
    made = MariaDBPool(mariadb_server.url, mariadb_template)
    yield made
    made.close()


@pytest.fixture(params=["postgresql", "mariadb"])
def pool(request):
    return request.getfixturevalue(request.param)


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
    tables = "SELECT table_name FROM information_schema.tables WHERE table_schema = {}"
    with pool.database() as url, administration(url) as connection:
        schema = "'public'" if pool.kind == "postgresql" else "database()"
        assert {*connection.scalars(text(tables.format(schema)))} == {*TABLES, VERSION_TABLE}


def test_tests_at_the_same_time_get_databases_of_their_own(pool):
    with pool.database() as first, pool.database() as second:
        assert first != second


@pytest.mark.parametrize("change", [*CHANGES, *POSTGRESQL_CHANGES])
def test_only_a_postgresql_database_with_nothing_but_rows_is_used_again(postgresql, change):
    is_used_again_if_only_rows_changed(postgresql, change)


@pytest.mark.parametrize("change", [*CHANGES, *MARIADB_CHANGES])
def test_only_a_mariadb_database_with_nothing_but_rows_is_used_again(mariadb, change):
    is_used_again_if_only_rows_changed(mariadb, change)


def is_used_again_if_only_rows_changed(pool, change):
    with pool.database() as first:
        use(first)
        with administration(first) as connection:
            connection.exec_driver_sql(
                "SET foreign_key_checks = 0" if pool.kind == "mariadb" else "SELECT 1"
            )
            connection.execute(text(change))

    with pool.database() as second:
        assert (second == first) == (change == ONLY_ROWS)


def test_the_statistics_of_the_rows_of_a_mariadb_database_are_deleted(mariadb):
    statistics = (
        "SELECT n_rows FROM mysql.innodb_table_stats"
        " WHERE database_name = database() AND table_name = 'dynbeat_schedule'"
    )
    with mariadb.database() as first:
        use(first)
        with administration(first) as connection:
            connection.execute(text("ANALYZE TABLE dynbeat_schedule"))
            assert connection.scalar(text(statistics)) == 1

    with mariadb.database() as second, administration(second) as connection:
        assert second == first
        assert connection.scalar(text(statistics)) == 0


def test_a_database_setting_is_not_used_again(postgresql):
    with postgresql.database() as first, administration(first) as connection:
        name = make_url(first).database
        connection.execute(text(f"ALTER DATABASE {name} SET work_mem = '1MB'"))

    with postgresql.database() as second:
        assert second != first


def test_a_database_with_large_tables_is_not_used_again(postgresql):
    with postgresql.database() as first, administration(first) as connection:
        rows = "SELECT 'user:' || n, 'UTC' FROM generate_series(1, 10000) n"
        connection.execute(text(f"INSERT INTO dynbeat_owner (owner, timezone) {rows}"))
        connection.execute(text("DELETE FROM dynbeat_owner"))

    with postgresql.database() as second:
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


def connect(pool, url):
    """Return a connection of the driver, which does not end with the pool of an engine."""
    address = make_url(url)
    if pool.kind == "postgresql":
        return psycopg.connect(address.set(drivername="postgresql").render_as_string())
    return pymysql.connect(
        host=address.host, port=address.port, user=address.username, database=address.database
    )


def test_an_open_transaction_fails_the_test_that_left_it(pool):
    open_connections = []

    def leave_open():
        with pool.database() as url:
            open_connections.append(connect(pool, url))
            open_connections[0].cursor().execute("SELECT * FROM dynbeat_hold")

    with pytest.raises(AssertionError, match="left in a transaction"):
        leave_open()
    open_connections[0].close()
