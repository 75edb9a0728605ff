"""Upgrades run one after the other. None runs without the lock, and each releases it."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import NullPool, create_engine, event, inspect, text
from sqlalchemy.exc import DBAPIError

from celery_dynbeat.common.errors import SchemaError
from celery_dynbeat.db import alembic_upgrade, schema
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.indexes import METADATA
from tests.support.suites import each_database
from tests.support.waiting import wait_until

pytestmark = pytest.mark.empty_database

_NAME = "concat('dynbeat_schema.', substr(sha2(database(), 256), 1, 32))"
LOCK = {
    "postgresql": "SELECT pg_try_advisory_xact_lock(hashtext('dynbeat_schema'))",
    "mysql": f"SELECT get_lock({_NAME}, 0)",
    "sqlite": "BEGIN IMMEDIATE",
}
UNLOCK = {"mysql": f"SELECT release_lock({_NAME})"}
SHORT = timedelta(seconds=0.2)


@contextmanager
def lock_held(url):
    """Hold the lock for upgrades in another session. Fail if it is not free."""
    engine = create_engine(url, poolclass=NullPool)
    kind = engine.dialect.name
    with engine.connect() as connection:
        taken = connection.execute(text(LOCK[kind]))
        assert kind == "sqlite" or taken.scalar()
        yield connection
        connection.rollback()
        if kind in UNLOCK:
            connection.execute(text(UNLOCK[kind]))


def tables(database):
    return inspect(database.engine).get_table_names()


@pytest.fixture(params=["postgresql", "mariadb"])
def server_url(request):
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def shared(database_url):
    """Give a database on an engine of the application, whose pool keeps the connection."""
    options = {"timeout": 0.2} if database_url.startswith("sqlite") else {}
    engine = create_engine(database_url, connect_args=options)
    yield Database(engine=engine)
    engine.dispose()


def test_no_upgrade_runs_while_another_process_holds_the_lock(server_url):
    database = Database(server_url)
    with lock_held(server_url), pytest.raises(SchemaError, match=r"has held the lock .* 0\.2 s"):
        schema.upgrade(database, lock_wait=SHORT)

    assert tables(database) == []
    assert schema.upgrade(database, lock_wait=SHORT)
    database.dispose()


def test_no_upgrade_of_sqlite_runs_without_the_write_lock(sqlite_url):
    database = Database(engine=create_engine(sqlite_url, connect_args={"timeout": 0.1}))
    with lock_held(sqlite_url), pytest.raises(DBAPIError, match="database is locked"):
        schema.upgrade(database, lock_wait=SHORT)

    assert tables(database) == []
    assert schema.upgrade(database)
    database.engine.dispose()


def test_an_upgrade_waits_for_the_lock(server_url, caplog):
    database = Database(server_url)
    with ThreadPoolExecutor() as executor:
        with lock_held(server_url):
            upgrade = executor.submit(schema.upgrade, database)
            wait_until(lambda: "waiting for another process" in caplog.text, within=10)
            assert not upgrade.done()

        assert upgrade.result(60)
    assert [record.event for record in caplog.records] == ["schema_locked"]
    database.dispose()


def test_a_waiting_upgrade_sees_the_tables_that_the_other_made(postgresql_url):
    """At REPEATABLE READ a query sees what was committed before the first query."""
    engine = create_engine(postgresql_url, isolation_level="REPEATABLE READ")
    waits = threading.Event()
    event.listen(
        engine,
        "before_cursor_execute",
        lambda *call: waits.set() if "advisory" in call[2] else None,
    )
    with ThreadPoolExecutor() as executor:
        with lock_held(postgresql_url) as other:
            upgrade = executor.submit(schema.upgrade, Database(engine=engine))
            assert waits.wait(10)
            alembic_upgrade.migrate(other)
            other.commit()

        upgrade.result(60)
    engine.dispose()


@each_database
def test_an_upgrade_that_fails_releases_the_lock(shared, database_url):
    with shared.engine.begin() as connection:
        connection.execute(text("CREATE TABLE dynbeat_run (id INTEGER)"))

    with pytest.raises(DBAPIError, match=r"CREATE TABLE dynbeat_run"):
        schema.upgrade(shared)

    with lock_held(database_url):
        pass


@each_database
def test_an_upgrade_that_succeeds_releases_the_lock(shared, database_url):
    schema.upgrade(shared)

    with lock_held(database_url):
        pass
    assert set(METADATA.tables) < set(tables(shared))


def test_the_error_of_a_lost_connection_is_raised(mariadb_url):
    engine = create_engine(mariadb_url)

    def lose(connection, _cursor, statement, *_):
        if "CREATE TABLE dynbeat_run" in statement:
            connection.connection.driver_connection._sock.shutdown(socket.SHUT_RDWR)

    event.listen(engine, "before_cursor_execute", lose)
    with pytest.raises(DBAPIError, match=r"CREATE TABLE dynbeat_run"):
        schema.upgrade(Database(engine=engine))

    wait_until(lambda: is_free(mariadb_url), within=5)
    engine.dispose()


def is_free(url):
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        return connection.scalar(text("SELECT is_free_lock('dynbeat_schema')"))
