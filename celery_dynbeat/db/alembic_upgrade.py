"""Run the migrations with Alembic, or print their SQL.

This module is separate from ``schema``, which every process imports at its start. Alembic takes
nine megabytes, and most processes have nothing to migrate.
"""

from io import StringIO

from alembic import command
from alembic.config import Config
from sqlalchemy import URL, Connection


def migrate(connection: Connection) -> None:
    """Upgrade the tables to the newest revision."""
    config = configuration()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def sql(url: URL, *, start: str | None) -> str:
    """Return the statements that ``migrate`` executes from revision ``start``; None: no tables.

    Only the dialect of ``url`` is used.
    """
    config, printed = configuration(), StringIO()
    config.output_buffer = printed
    config.attributes["url"] = url
    command.upgrade(config, f"{start or 'base'}:head", sql=True)
    return printed.getvalue()


def configuration() -> Config:
    """Return an Alembic configuration that points to the migrations of this package."""
    config = Config()
    config.set_main_option("script_location", "celery_dynbeat.db:migrations")
    return config
