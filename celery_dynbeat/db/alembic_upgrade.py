"""Run the migrations with Alembic, or print their SQL.

This module is separate from ``schema``, which every process imports at its start. Alembic takes
nine megabytes, and most processes have nothing to migrate.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import URL, Connection, event

from celery_dynbeat.common.errors import SchemaError
from celery_dynbeat.db import table_names
from celery_dynbeat.db.dialects import capabilities_of


def migrate(connection: Connection, revision: str = "head") -> None:
    """Upgrade the tables to ``revision``, by default to the newest."""
    config = configuration()
    config.attributes["connection"] = connection
    with _in_schema(connection), _renamed(connection):
        command.upgrade(config, revision)


def sql(url: URL, *, start: str | None) -> str:
    """Return the statements of ``migrate`` from revision ``start``, or None without tables.

    Only the dialect of ``url`` is used.
    """
    config, printed = configuration(), StringIO()
    config.output_buffer = printed
    config.attributes["url"] = url
    command.upgrade(config, f"{start or 'base'}:head", sql=True)
    names, dialect = table_names(), url.get_dialect()()
    statements = names.rename(printed.getvalue(), backend=dialect.name)
    if names.schema is None:
        return statements
    quoted = dialect.identifier_preparer.quote_identifier(names.schema)
    return f"{capabilities_of(dialect).entering_schema(quoted)};\n\n{statements}"


@contextmanager
def _renamed(connection: Connection) -> Iterator[None]:
    """Execute the statements of migrations with the prefix of this process."""

    def rename(
        _connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any
    ) -> tuple[str, Any]:
        return table_names().rename(statement, backend=connection.dialect.name), parameters

    event.listen(connection, "before_cursor_execute", rename, retval=True)
    try:
        yield
    finally:
        event.remove(connection, "before_cursor_execute", rename)


@contextmanager
def _in_schema(connection: Connection) -> Iterator[None]:
    """Execute the statements of migrations, which name no schema, in the schema of this process."""
    schema = table_names().schema
    if schema is None:
        yield
        return
    preparer = connection.dialect.identifier_preparer
    capabilities = capabilities_of(connection.dialect)
    if not capabilities.has_schema(connection, schema):
        raise SchemaError(
            f"dynbeat_schema = {schema!r} does not exist, or the account has no rights on it: run"
            f" CREATE SCHEMA {preparer.quote(schema)} with the rights of an administrator"
        )
    with capabilities.in_schema(connection, preparer.quote_identifier(schema)):
        yield


def configuration() -> Config:
    """Return an Alembic configuration that points to the migrations of this package."""
    config = Config()
    config.set_main_option("script_location", "celery_dynbeat.db:migrations")
    return config
