"""Run the migrations with Alembic.

This module is separate from ``schema``, which every process imports at its start. Alembic takes
nine megabytes, and most processes have nothing to migrate.
"""

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


def migrate(connection: Connection) -> None:
    """Upgrade the tables to the newest revision."""
    config = configuration()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def configuration() -> Config:
    """Return an Alembic configuration that points to the migrations of this package."""
    config = Config()
    config.set_main_option("script_location", "celery_dynbeat.db:migrations")
    return config
