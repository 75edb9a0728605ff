"""Connections of Django's drivers, borrowed by SQLAlchemy.

SQLAlchemy neither ends their transaction nor closes or configures them. Their cursors return what
SQLAlchemy's dialects expect, and not what Django's fields expect.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any


class Borrowed:
    """A connection whose owner ends the transaction and closes it."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        """Do nothing: Django commits."""

    def rollback(self) -> None:
        """Do nothing: Django rolls back."""

    def close(self) -> None:
        """Do nothing: Django closes it."""


class BorrowedSqlite(Borrowed):
    """A connection of sqlite3 with the converters and functions of Django."""

    def create_function(self, *_: Any, **__: Any) -> None:
        """Do nothing: SQLAlchemy's function REGEXP would replace Django's function."""

    def cursor(self, *_: Any, **__: Any) -> "SqliteCursor":
        """Return a cursor without Django's converters."""
        return SqliteCursor(self._connection)


class SqliteCursor:
    """A cursor of sqlite3 that returns dates as text, as SQLite stores them.

    Django registers a converter for the type DATETIME, and SQLAlchemy parses the text itself.
    """

    def __init__(self, connection: Any) -> None:
        import sqlite3  # noqa: PLC0415 - a project on PostgreSQL may have a Python without it

        # The cursor of Django's connection class is not used, because it converts "%s" parameters.
        self._cursor = sqlite3.Cursor(connection)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        row = self._cursor.fetchone()
        return None if row is None else _as_stored(row)

    def fetchmany(self, *size: int) -> list[Any]:
        """Return the next rows."""
        return [_as_stored(row) for row in self._cursor.fetchmany(*size)]

    def fetchall(self) -> list[Any]:
        """Return the remaining rows."""
        return [_as_stored(row) for row in self._cursor.fetchall()]


def _as_stored(row: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(
        value.isoformat(sep=" ", timespec="microseconds") if isinstance(value, datetime) else value
        for value in row
    )


class BorrowedPsycopg(Borrowed):
    """A connection of psycopg 3 with the adapters of Django."""

    def add_notice_handler(self, callback: Any) -> None:
        """Do nothing: each session would add one more."""
        del callback

    def cursor(self, *_: Any, **__: Any) -> Any:
        """Return a cursor with the loaders of psycopg in place of Django's loaders."""
        import psycopg  # noqa: PLC0415 - a project on SQLite does not install it
        from psycopg.types.datetime import TimestamptzLoader  # noqa: PLC0415
        from psycopg.types.json import JsonbLoader  # noqa: PLC0415

        cursor = psycopg.Cursor(self._connection)
        # Django loads JSON as text, and instants as naive values with USE_TZ = False.
        cursor.adapters.register_loader("jsonb", JsonbLoader)
        cursor.adapters.register_loader("timestamptz", TimestamptzLoader)
        return cursor


#: SQLAlchemy's name of a driver -> how to borrow its connections.
BORROWED: Mapping[str, Callable[[Any], Borrowed]] = {
    "sqlite": BorrowedSqlite,
    "postgresql+psycopg": BorrowedPsycopg,
    # Django's converters differ from the driver's for the type TIME, which no table has.
    "mysql+mysqldb": Borrowed,
    "mysql+pymysql": Borrowed,
}
