"""Create, migrate and check the tables."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from importlib import resources

from sqlalchemy import Connection, column, inspect, select, table
from sqlalchemy.exc import SQLAlchemyError

from celery_dynbeat.common.errors import ConfigurationError, SchemaError
from celery_dynbeat.common.events import Event
from celery_dynbeat.db import PREFIX, table_names, types
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.engine import Database

logger = logging.getLogger(__name__)

#: A migration of large tables takes minutes.
LOCK_WAIT = timedelta(minutes=10)
_LOCK_PAUSE = 0.5
#: The beginning of the fix if another schema has the tables.
SET_SCHEMA = "set dynbeat_schema"
_HINT = "run `celery -A your_app dynbeat schema upgrade`"


def upgrade(database: Database, *, lock_wait: timedelta = LOCK_WAIT) -> bool:
    """Create the tables, or migrate them to the revision of this package.

    Return whether they were not at that revision. A lock makes concurrent upgrades run one after
    the other. A newer schema stays unchanged. Raises SchemaError if another process holds the lock
    for ``lock_wait``. On SQLite the busy timeout limits the wait, and the driver raises its error.
    """
    _check_names(database)
    database.check_folder()
    with database.engine.connect() as connection:
        types.check_encoding(connection, shown_url=database.shown_url)
        if _is_current(_revision(connection)):
            return False
    with database.connection_without_timeouts() as connection:
        # After the wait, a query must see what the other process has committed.
        connection.execution_options(**database.capabilities.execution_options)
        with _locked(connection, database, lock_wait):
            if not _is_current(_revision(connection)):
                _migrate(connection)
            connection.commit()
    return True


@contextmanager
def _locked(connection: Connection, database: Database, lock_wait: timedelta) -> Iterator[None]:
    """Hold the lock of the schema in the block."""
    capabilities = database.capabilities
    _lock(connection, database, lock_wait)
    try:
        yield
    except BaseException:
        # The connection may be lost, and the lock with it. The first error is the cause.
        with suppress(SQLAlchemyError):
            capabilities.unlock_schema(connection)
        raise
    capabilities.unlock_schema(connection)


def _lock(connection: Connection, database: Database, lock_wait: timedelta) -> None:
    deadline = time.monotonic() + lock_wait.total_seconds()
    is_waiting = False
    while not database.capabilities.lock_schema(connection):
        # A session that waits must not stay in a transaction.
        connection.rollback()
        if time.monotonic() >= deadline:
            raise SchemaError(
                f"another process has held the lock for upgrades on {database.shown_url} for"
                f" {lock_wait.total_seconds():g} s: nothing was changed; find out whether its"
                " upgrade still runs, and repeat this one when it has ended"
            )
        if not is_waiting:
            logger.warning(
                "waiting for another process that upgrades the tables",
                extra={"event": Event.SCHEMA_LOCKED},
            )
        is_waiting = True
        database.sleep(_LOCK_PAUSE)


def upgrade_sql(database: Database, *, start: str | None = None) -> str:
    """Return the statements of ``upgrade``, for a client such as psql; "" if there are none.

    ``start`` is the revision of the tables, or "base" if there are none. If it is not given, the
    revision is read from the database. Otherwise no connection is opened, and the URL must tell
    MariaDB (``mariadb+pymysql://``) from MySQL. Raises SchemaError for SQLite, where a migration
    can have to copy a table, and for an unknown ``start``.
    """
    _check_names(database)
    url = database.engine.url
    if database.capabilities.embedded:
        raise SchemaError(
            f"{database.shown_url} is SQLite, where a migration can read the tables that it"
            f" changes: {_HINT}"
        )
    if start is None:
        with database.engine.connect() as connection:
            start = _revision(connection)
            if getattr(connection.dialect, "is_mariadb", False):
                # Without a connection, only the name of the dialect distinguishes them.
                url = url.set(drivername=f"mariadb+{url.get_driver_name()}")
    elif start not in {"base", *_revisions()}:
        msg = f"unknown revision {start!r}: it is base or one of {', '.join(_revisions())}"
        raise SchemaError(msg)
    start = None if start == "base" else start
    if _is_current(start):
        return ""
    with _quiet_alembic():
        from celery_dynbeat.db.alembic_upgrade import sql  # noqa: PLC0415

        return sql(url, start=start)


def check(database: Database) -> str:
    """Return the revision of the tables.

    Raises SchemaError when the tables are missing or their revision is too old. A newer revision is
    accepted, because a rolling upgrade migrates the tables first, and migrations only add columns
    and tables.
    """
    _check_names(database)
    database.check_folder()
    with database.engine.connect() as connection:
        return check_connection(connection, database.shown_url)


def check_connection(connection: Connection, shown_url: str) -> str:
    """Return the revision of the tables like ``check``, in the transaction of ``connection``."""
    revision = _revision(connection)
    if revision is None:
        missing = f"{shown_url} has no tables of celery_dynbeat{_settings_of_names()}"
        raise SchemaError(f"{missing}{_where_else(connection) or f': {_HINT}'}")
    if not _is_current(revision):
        msg = f"the tables are at revision {revision}, but this version needs {head()}: {_HINT}"
        raise SchemaError(msg)
    types.check_encoding(connection, shown_url=shown_url)
    return revision


@cache
def head() -> str:
    """Return the revision that this version of the package needs."""
    return _revisions()[-1]


@cache
def _revisions() -> list[str]:
    # The name of a migration file starts with its revision.
    files = resources.files("celery_dynbeat.db").joinpath("migrations", "versions").iterdir()
    return sorted(file.name.partition("_")[0] for file in files if file.name[:1].isdigit())


def _check_names(database: Database) -> None:
    name = table_names().schema
    reason = None if name is None else database.capabilities.why_no_schema(name)
    if reason is not None:
        raise ConfigurationError(f"dynbeat_schema = {name!r}: {reason}")


def _settings_of_names() -> str:
    """Return the settings that place the tables, for an error; "" if they have their defaults."""
    names = table_names()
    prefix = None if names.prefix == PREFIX else names.prefix
    given = {"dynbeat_schema": names.schema, "dynbeat_table_prefix": prefix}
    return "".join(f" with {name} = {value!r}" for name, value in given.items() if value)


def _where_else(connection: Connection) -> str:
    """Return which schemas have the tables, for an error; "" if none has, or one is set."""
    names = table_names()
    capabilities = capabilities_of(connection.dialect)
    found = [] if names.schema else capabilities.schemas_of(connection, names.version_table)
    if not found:
        return ""
    path, place = capabilities.search_path(connection), repr(found[0])
    return (
        f" in its search path {path}, but schema {place} has them: {SET_SCHEMA} = {place},"
        " or correct the search path, which a pooler such as PgBouncer can take over from another"
        f" client; to create tables in this search path, {_HINT}"
    )


def _migrate(connection: Connection) -> None:
    with _quiet_alembic():
        # Alembic is imported only by a process that migrates.
        from celery_dynbeat.db.alembic_upgrade import migrate  # noqa: PLC0415

        migrate(connection)


@contextmanager
def _quiet_alembic() -> Iterator[None]:
    # Alembic logs its plugins and each check of the revision at INFO, into beat's log.
    logger = logging.getLogger("alembic")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _revision(connection: Connection) -> str | None:
    names = table_names()
    if not inspect(connection).has_table(names.version_table, schema=names.schema):
        return None
    versions = table(names.version_table, schema=names.schema)
    return connection.scalar(select(column("version_num")).select_from(versions))


def _is_current(revision: str | None) -> bool:
    # Revision numbers only grow, so an unknown one is newer than this version.
    return revision is not None and revision >= head()
