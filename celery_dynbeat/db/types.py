"""Column types that mean the same on every database."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import CHAR, DateTime, Dialect, String
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.types import TypeDecorator, TypeEngine


def as_utc(instant: datetime) -> datetime:
    """Return ``instant`` in UTC. Raises ValueError for a naive one, which says nothing."""
    if instant.tzinfo is UTC:
        return instant
    if instant.tzinfo is None:
        msg = f"naive datetime {instant!r} refused: give an aware one (datetime.now(UTC))"
        raise ValueError(msg)
    return instant.astimezone(UTC)


class UtcDateTime(TypeDecorator[datetime]):
    """An instant: aware in Python, UTC with microseconds in the database.

    A naive value is refused with ValueError: it could mean any of two dozen instants.
    """

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.TIMESTAMP(timezone=True))
        if dialect.name in {"mysql", "mariadb"}:
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(DateTime())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        instant = as_utc(value)
        return instant if dialect.name == "postgresql" else instant.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        del dialect
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else as_utc(value)


class RunId(TypeDecorator[str]):
    """A UUID as its 36 characters, so that an id copied from a log can be pasted into a query."""

    impl = CHAR(36)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.UUID(as_uuid=False))
        if dialect.name in {"mysql", "mariadb"}:
            return dialect.type_descriptor(
                mysql.CHAR(36, charset="ascii", collation="ascii_bin"),
            )
        return dialect.type_descriptor(CHAR(36))


def exact_text(length: int) -> TypeEngine[str]:
    """Return a text type that compares letter for letter.

    MySQL's default collations take "Bob" and "bob" for the same owner; utf8mb4_bin does not.
    """
    return String(length).with_variant(
        mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin"),
        "mysql",
        "mariadb",
    )
