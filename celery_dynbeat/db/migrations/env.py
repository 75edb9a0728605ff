"""Alembic's environment: run the migrations on a connection, or print their SQL."""

from alembic import context

from celery_dynbeat.db import table_names
from celery_dynbeat.db.indexes import METADATA


def run() -> None:
    """Run the migrations inside the caller's transaction."""
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=METADATA,
        version_table=table_names().version_table,
        version_table_schema=table_names().schema,
        transaction_per_migration=False,
    )
    context.run_migrations()


def print_sql() -> None:
    """Print the statements. PostgreSQL executes them in one transaction."""
    context.configure(
        url=context.config.attributes["url"],
        # Otherwise "%" would be doubled for the driver.
        dialect_opts={"paramstyle": "named"},
        literal_binds=True,
        target_metadata=METADATA,
        version_table=table_names().version_table,
        version_table_schema=table_names().schema,
        transaction_per_migration=False,
    )
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    print_sql()
else:
    run()
