"""Alembic's environment: run the migrations on the connection of celery_dynbeat.db.schema."""

from alembic import context

from celery_dynbeat.db.indexes import METADATA
from celery_dynbeat.db.schema import VERSION_TABLE


def run() -> None:
    """Run the migrations inside the caller's transaction."""
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=METADATA,
        version_table=VERSION_TABLE,
        transaction_per_migration=False,
    )
    context.run_migrations()


run()
