"""Bring the tables to the version that this package works with, or say what is missing."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from celery_dynbeat.db.engine import Database
from celery_dynbeat.errors import SchemaError

VERSION_TABLE = "dynbeat_alembic_version"
_CURE = "run `celery -A your_app dynbeat schema upgrade`"


def upgrade(database: Database) -> None:
    """Create the tables, or migrate them to this version; processes that try at once take turns.

    A schema that is newer than this package is left alone.
    """
    capabilities = database.capabilities
    with database.engine.connect() as connection:
        if _is_enough(_revision(connection)):
            return
    with database.patient_connection() as connection:
        capabilities.lock_schema(connection)
        try:
            if not _is_enough(_revision(connection)):
                _migrate(connection)
            connection.commit()
        finally:
            capabilities.unlock_schema(connection)


def check(database: Database) -> str:
    """Return the revision of the tables.

    Raises SchemaError when the tables are missing or behind. A newer revision is accepted: during
    a rolling upgrade the tables come first, and migrations only add.
    """
    with database.engine.connect() as connection:
        return check_on(connection, database.shown_url)


def check_on(connection: Connection, shown_url: str) -> str:
    """Do the same as ``check``, within the transaction of ``connection``."""
    revision = _revision(connection)
    if revision is None:
        msg = f"the tables of celery_dynbeat are not in {shown_url}: {_CURE}"
        raise SchemaError(msg)
    if not _is_enough(revision):
        msg = f"the tables are at revision {revision}, this version needs {head()}: {_CURE}"
        raise SchemaError(msg)
    return revision


def head() -> str:
    """Return the revision that this version of the package works with."""
    revision = _script().get_current_head()
    assert revision is not None  # noqa: S101 - the package ships its migrations
    return revision


def _migrate(connection: Connection) -> None:
    config = _config()
    config.attributes["connection"] = connection
    with _quiet_alembic():
        command.upgrade(config, "head")


def _revision(connection: Connection) -> str | None:
    with _quiet_alembic():
        options = {"version_table": VERSION_TABLE}
        context = MigrationContext.configure(connection, opts=options)
    return context.get_current_revision()


@contextmanager
def _quiet_alembic() -> Iterator[None]:
    # It reports each look at the revision at INFO, into the log of whoever starts a beat.
    logger = logging.getLogger("alembic.runtime.migration")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _is_enough(revision: str | None) -> bool:
    # Revisions are numbers that only grow: one that we do not know was made after us.
    return revision is not None and revision >= head()


def _script() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "celery_dynbeat.db:migrations")
    return config
