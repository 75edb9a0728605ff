"""Column types with the same meaning on every database.

The MySQL dialect is imported inside functions: it takes 20 modules and a megabyte.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import CHAR, DateTime, Dialect, String, Text
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import TypeDecorator, TypeEngine

from celery_dynbeat.db.encoding import escape_unstorable

#: What SQLAlchemy calls MySQL and MariaDB.
MYSQL = frozenset({"mysql", "mariadb"})


def as_utc(instant: datetime) -> datetime:
    """Return ``instant`` in UTC. Raises ValueError for a naive datetime."""
    if instant.tzinfo is UTC:
        return instant
    if instant.tzinfo is None:
        msg = f"naive datetime {instant!r} rejected: give an aware one, such as datetime.now(UTC)"
        raise ValueError(msg)
    return instant.astimezone(UTC)


class UtcDateTime(TypeDecorator[datetime]):
    """An instant: aware in Python, UTC with microseconds in the database.

    Raises ValueError for a naive value: it has no time zone, so it names no instant.
    """

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.TIMESTAMP(timezone=True))
        if dialect.name in MYSQL:
            from sqlalchemy.dialects import mysql  # noqa: PLC0415 - see the module docstring

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
    """A UUID as its 36 characters, so that a user can paste an id from a log into a query."""

    impl = CHAR(36)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.UUID(as_uuid=False))
        if dialect.name in MYSQL:
            from sqlalchemy.dialects import mysql  # noqa: PLC0415

            return dialect.type_descriptor(
                mysql.CHAR(36, charset="ascii", collation="ascii_bin"),
            )
        return dialect.type_descriptor(CHAR(36))


class ExactText(TypeDecorator[str]):
    """A text of at most ``length`` characters that is compared exactly.

    In MySQL's default collations "Bob" equals "bob"; in utf8mb4_bin it does not.
    """

    impl = String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name in MYSQL:
            from sqlalchemy.dialects import mysql  # noqa: PLC0415

            return dialect.type_descriptor(
                mysql.VARCHAR(self.length, charset="utf8mb4", collation="utf8mb4_bin"),
            )
        # Not type_descriptor(): it would turn a Text column into a VARCHAR.
        return self.impl_instance


class LongText(TypeDecorator[str]):
    """The text of an error, of any length. MySQL's TEXT is limited to 64 KiB.

    Letters that the database's encoding cannot store are stored as escapes.
    """

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name in MYSQL:
            from sqlalchemy.dialects import mysql  # noqa: PLC0415

            return dialect.type_descriptor(mysql.MEDIUMTEXT())
        return self.impl_instance

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else escape_unstorable(value, dialect)
