"""A new database for one test, empty or a copy of a template, removed afterwards.

At the end of the test each checks for an open transaction: a connection that the test or the code
under test did not return to its pool.
"""

import contextlib
import functools
import shutil
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, NullPool, create_engine, event, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.support.waiting import wait_until

# The server needs some time to notice that a process with an open transaction was killed.
TRANSACTIONS_END_WITHIN = 3.0
# INNODB_TRX shows the result of the previous read until 0.1 s pass without a read.
INNODB_TRX_CACHED = 0.15
_innodb_trx_read_at: dict[str, float] = {}

POSTGRESQL_TRANSACTIONS = """
    SELECT pid, state, query FROM pg_stat_activity
    WHERE datname = :name AND xact_start IS NOT NULL AND backend_type = 'client backend'
"""
MARIADB_SESSIONS = "SELECT count(*) FROM information_schema.processlist WHERE db = :name"
MARIADB_TRANSACTIONS = """
    SELECT p.id, p.command, t.trx_state, t.trx_query
    FROM information_schema.innodb_trx t
    JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
    WHERE p.db = :name
"""


@event.listens_for(Engine, "connect")
def _disable_fsync_on_sqlite(connection: Any, _record: Any) -> None:
    # For all engines of this process. A commit survives the end of the process without the fsync.
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")


@contextlib.contextmanager
def new_postgresql_database(server_url: str, options: str = "") -> Iterator[str]:
    """Yield the URL of a new database on the server, which is dropped with its connections.

    ``options`` are those of CREATE DATABASE.
    """
    with administration(server_url) as connection:
        name = new_name()
        connection.execute(text(f"CREATE DATABASE {name} {options}"))
        try:
            yield database_url(server_url, name)
            assert_no_open_transaction(open_postgresql_transactions, connection, name=name)
        finally:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


@contextlib.contextmanager
def new_mariadb_database(server_url: str) -> Iterator[str]:
    """Yield the URL of a new utf8mb4 database on the server; it also serves MySQL."""
    with administration(server_url) as connection:
        name = new_name()
        connection.execute(text(f"CREATE DATABASE {name} CHARACTER SET utf8mb4"))
        try:
            yield mariadb_url(server_url, name)
            assert_no_open_transaction(open_mariadb_transactions, connection, name=name)
        finally:
            end_mariadb_sessions(connection, name=name)
            connection.execute(text(f"DROP DATABASE {name}"))


@contextlib.contextmanager
def new_schema(connection: Connection, name: str) -> Iterator[str]:
    """Yield ``name``, of a new schema. On MariaDB it is a database."""
    quoted = connection.dialect.identifier_preparer.quote_identifier(name)
    cascade = " CASCADE" if connection.dialect.name == "postgresql" else ""
    connection.execute(text(f"CREATE SCHEMA {quoted}"))
    connection.commit()
    try:
        yield name
    finally:
        connection.rollback()
        connection.execute(text(f"DROP SCHEMA {quoted}{cascade}"))
        connection.commit()


@contextlib.contextmanager
def new_sqlite_database(folder: Path, template: Path | None = None) -> Iterator[str]:
    """Yield the URL of a database file in ``folder``: a copy of ``template``.

    Without a template the first connection makes the file.
    """
    file = folder / "dynbeat.sqlite3"
    if template:
        shutil.copyfile(template, file)
    yield f"sqlite:///{file}"
    if file.exists():
        wait_until(
            lambda: is_write_lock_free(file),
            within=TRANSACTIONS_END_WITHIN,
            message=f"a transaction is left open in {file}",
        )


@contextlib.contextmanager
def administration(server_url: str) -> Iterator[Connection]:
    """Yield a connection in autocommit mode, as CREATE DATABASE requires."""
    with administration_engine(server_url).connect() as connection:
        yield connection


@functools.cache
def administration_engine(server_url: str) -> Engine:
    """Return the engine of ``administration``. The first connection of a new one takes longer."""
    return create_engine(server_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")


def pool_of(engine: Engine | AsyncEngine) -> Any:
    """Return the pool of an engine. The type Pool lacks the counts of connections."""
    return engine.pool


def new_name() -> str:
    """Return a name that no other test, worker or run of the suite uses."""
    # Fault tests also use it for an account. MySQL limits these names to 32 characters.
    return f"dynbeat_test_{uuid.uuid4().hex[:16]}"


def database_url(server_url: str, name: str) -> str:
    """Return the URL of another database on the same server, with its password."""
    return make_url(server_url).set(database=name, query={}).render_as_string(hide_password=False)


def mariadb_url(server_url: str, name: str) -> str:
    """Return the URL of a database on a MariaDB or MySQL server, for all characters."""
    return f"{database_url(server_url, name)}?charset=utf8mb4"


def open_postgresql_transactions(connection: Connection, name: str) -> Sequence[object]:
    """Return the open transactions of the clients of a PostgreSQL database."""
    return connection.execute(text(POSTGRESQL_TRANSACTIONS), {"name": name}).all()


def open_mariadb_transactions(connection: Connection, name: str) -> Sequence[object]:
    """Return the open transactions of the clients of a MariaDB database.

    It waits until the server computes them again. Only the reads of this process are considered.
    Without a session in the database there is no transaction, and no wait.
    """
    if not connection.scalar(text(MARIADB_SESSIONS), {"name": name}):
        return []
    server = str(connection.engine.url)
    next_at = _innodb_trx_read_at.get(server, 0.0) + INNODB_TRX_CACHED
    wait_until(lambda: time.monotonic() >= next_at, within=2 * INNODB_TRX_CACHED)
    found = connection.execute(text(MARIADB_TRANSACTIONS), {"name": name}).all()
    _innodb_trx_read_at[server] = time.monotonic()
    return found


def assert_no_open_transaction(
    open_transactions: Callable[[Connection, str], Sequence[object]],
    connection: Connection,
    *,
    name: str,
) -> None:
    """Raise AssertionError with the queries if clients of the database have open transactions."""
    left: list[object] = []

    def all_ended() -> bool:
        left[:] = open_transactions(connection, name)
        return not left

    try:
        wait_until(all_ended, within=TRANSACTIONS_END_WITHIN)
    except AssertionError:
        message = f"a connection is left in a transaction: {left}"
        raise AssertionError(message) from None


def end_mariadb_sessions(connection: Connection, *, name: str) -> None:
    """End the sessions in the database: their metadata locks could block its DROP."""
    sessions = "SELECT id FROM information_schema.processlist WHERE db = :name"
    for session in connection.execute(text(sessions), {"name": name}).scalars().all():
        # The session may have ended: "Unknown thread id".
        with contextlib.suppress(Exception):
            connection.execute(text(f"KILL {int(session)}"))


def is_write_lock_free(file: Path) -> bool:
    """Return whether the write lock of the SQLite database is free."""
    with contextlib.closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return False
        return True
