"""The migrations, run by Alembic.

Apart from ``schema``, which every process asks at its start: Alembic takes nine megabytes, and most
of them have nothing to migrate.
"""

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


def migrate(connection: Connection) -> None:
    """Bring the tables to the newest revision."""
    config = configuration()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def configuration() -> Config:
    """Return what tells Alembic where our migrations are."""
    config = Config()
    config.set_main_option("script_location", "celery_dynbeat.db:migrations")
    return config
