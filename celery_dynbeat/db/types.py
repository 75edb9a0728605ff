"""Column types and functions with the same meaning on every database, and escaped error texts.

Only manual SQL stores values that Python cannot convert. Such a value must not hide the other rows
of a result, so it has a readable substitute here: Json and RunInstant. ``db.type_checks`` refuses
the others.

The encoding of PostgreSQL is read when the tables are checked. A letter in an exception's text must
not prevent the worker from recording how a task ended, so error texts are stored with escapes.
Names and arguments are never escaped, because they are the user's data. The database rejects text
that its encoding cannot store.

The MySQL dialect is imported inside functions, because it takes 20 modules and a megabyte.
"""

import codecs
import json
import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import CHAR, JSON, ColumnElement, Connection, DateTime, Dialect, String, Text
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import Double, TypeDecorator, TypeEngine

from celery_dynbeat.common.events import Event
from celery_dynbeat.common.text import EARLIEST, LATEST
from celery_dynbeat.db.dialects import capabilities_of

logger = logging.getLogger(__name__)


class utc_now(FunctionElement[datetime]):  # noqa: N801 - reads as the SQL function that it is
    """The current instant of the database in UTC, for server defaults."""

    type = DateTime()
    inherit_cache = True


@compiles(utc_now)
def _utc_now(element: utc_now, compiler: SQLCompiler, **_: Any) -> str:
    del element, compiler
    return "CURRENT_TIMESTAMP"


@compiles(utc_now, "mysql")
@compiles(utc_now, "mariadb")
def _utc_now_mysql(element: utc_now, compiler: SQLCompiler, **_: Any) -> str:
    del element, compiler
    # MySQL requires parentheses around a default that is an expression.
    return "(utc_timestamp(6))"


class _Read(FunctionElement[Any]):
    """A column in a form that a driver can convert. It has the type of the column."""

    inherit_cache = True

    def __init__(self, column: Any, *, type_: TypeEngine[Any]) -> None:
        super().__init__(column)
        self.type = type_


@compiles(_Read)
def _read(element: _Read, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(element.clauses, **options)


class as_text(_Read):  # noqa: N801 - reads as an SQL function
    """A column of JSON as its text."""

    inherit_cache = True


@compiles(as_text, "postgresql")
def _as_text(element: as_text, compiler: SQLCompiler, **options: Any) -> str:
    return f"{compiler.process(element.clauses, **options)}::text"


class in_calendar(_Read):  # noqa: N801 - reads as an SQL function
    """An instant, or an end of the calendar for one outside the years of fire times."""

    inherit_cache = True


@compiles(in_calendar, "postgresql")
def _in_calendar(element: in_calendar, compiler: SQLCompiler, **options: Any) -> str:
    at = compiler.process(element.clauses, **options)
    first, last = f"'{EARLIEST.isoformat()}'", f"'{LATEST.isoformat()}'"
    return f"CASE WHEN {at} < {first} THEN {first} WHEN {at} > {last} THEN {last} ELSE {at} END"


@compiles(in_calendar, "mysql")
@compiles(in_calendar, "mariadb")
def _in_calendar_mysql(element: in_calendar, compiler: SQLCompiler, **options: Any) -> str:
    at = compiler.process(element.clauses, **options)
    # Some drivers return None for the year 0.
    return f"greatest({at}, TIMESTAMP'{EARLIEST:%Y-%m-%d %H:%M:%S}')"


class seconds_between(FunctionElement[float]):  # noqa: N801 - reads as an SQL function
    """The seconds from the first instant to the second, or None if one of them is NULL."""

    type = Double()
    inherit_cache = True


@compiles(seconds_between)
def _seconds_between(element: seconds_between, compiler: SQLCompiler, **options: Any) -> str:
    begin, end = (compiler.process(each, **options) for each in element.clauses)
    return f"extract(epoch FROM {end} - {begin})"


@compiles(seconds_between, "sqlite")
def _seconds_between_sqlite(element: seconds_between, compiler: SQLCompiler, **options: Any) -> str:
    begin, end = (compiler.process(each, **options) for each in element.clauses)
    return f"(julianday({end}) - julianday({begin})) * 86400.0"


@compiles(seconds_between, "mysql")
@compiles(seconds_between, "mariadb")
def _seconds_between_mysql(element: seconds_between, compiler: SQLCompiler, **options: Any) -> str:
    begin, end = (compiler.process(each, **options) for each in element.clauses)
    return f"timestampdiff(MICROSECOND, {begin}, {end}) / 1e6"


_codecs: WeakKeyDictionary[Dialect, str] = WeakKeyDictionary()
#: Prefixes of PostgreSQL's encoding names, with the prefix of Python's codec.
_PREFIXES = {"WIN": "cp", "KOI8": "koi8_"}


def check_encoding(connection: Connection, *, shown_url: str) -> str | None:
    """Return the database's encoding if it cannot store every text, else None.

    Logs a warning once per dialect instance, and so once per engine.
    """
    dialect = connection.dialect
    encoding = capabilities_of(dialect).limited_encoding(connection)
    if encoding is not None and dialect not in _codecs:
        _codecs[dialect] = _codec_of(encoding)
        logger.warning(
            "the encoding of %s is %s: names and arguments outside it are rejected, and error"
            " texts are stored with escapes; move to a database whose encoding is UTF8",
            shown_url,
            encoding,
            extra={"event": Event.ENCODING_LIMITED},
        )
    return encoding


def _codec_of(encoding: str) -> str:
    for prefix, name in _PREFIXES.items():
        if encoding.startswith(prefix):
            encoding = name + encoding.removeprefix(prefix).lower()
    try:
        return codecs.lookup(encoding).name
    except LookupError:
        # Every server encoding of PostgreSQL contains ASCII.
        return "ascii"


def escape_unstorable(text: str, dialect: Dialect) -> str:
    """Return ``text`` with escapes for the letters that the database cannot store."""
    codec = _codecs.get(dialect)
    return text if codec is None else text.encode(codec, "backslashreplace").decode(codec)


def escape_non_ascii(text: str) -> str:
    """Return ``text`` with escapes for all letters outside ASCII. Every database stores it."""
    return text.encode("ascii", "backslashreplace").decode()


_SECONDS = re.compile(r"\d{1,10}(?:\.\d{1,6})?", re.ASCII)
#: The names of MySQL and MariaDB in SQLAlchemy.
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

    Raises ValueError for a naive value, which has no time zone and therefore names no instant.
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

    def result_processor(
        self, dialect: Dialect, coltype: object
    ) -> Callable[[Any], datetime | None] | None:
        # Each row of a claim has seven instants. SQLAlchemy would call two functions for each.
        if dialect.name == "postgresql":
            return _in_utc
        return super().result_processor(dialect, coltype)


def _in_utc(value: datetime | None) -> datetime | None:
    return value if value is None or value.tzinfo is UTC else value.astimezone(UTC)


class RunInstant(UtcDateTime):
    """An instant of a run. Before EARLIEST it reads as EARLIEST, after LATEST as LATEST.

    So does infinity in PostgreSQL. A text in SQLite that is not an instant reads as EARLIEST.
    """

    cache_ok = True

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[datetime]:
        # The drivers of PostgreSQL cannot convert an instant outside the calendar.
        return in_calendar(column, type_=self)

    def result_processor(
        self, dialect: Dialect, coltype: object
    ) -> Callable[[Any], datetime | None] | None:
        convert = super().result_processor(dialect, coltype)
        if convert is None or dialect.name == "postgresql":
            return convert

        def tolerant(value: Any) -> datetime | None:
            try:
                at = convert(value)
            except (AttributeError, TypeError, ValueError):
                return EARLIEST
            return None if at is None else min(max(at, EARLIEST), LATEST)

        return tolerant


class _JsonText(JSON):
    """JSON that MySQL stores as text."""


@compiles(_JsonText, "mysql")
def _compile_json_text(element: _JsonText, compiler: Any, **options: Any) -> str:
    if not getattr(compiler.dialect, "is_mariadb", False):
        return "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    text: str = compiler.visit_JSON(element, **options)
    return text


class Json(TypeDecorator[Any]):
    """JSON of a ``shape``, ``"array"`` or ``"object"``, in the same form for each driver.

    It is read as it was written: each digit of a number, and the order of the keys. MySQL's own
    type turns a number beyond 64 bits into a float, and sorts the keys. MariaDB's type of this name
    is a text that must be valid JSON, so it is the same on MySQL. JSON that Python cannot read,
    such as a number of 5,000 digits, reads as None.

    ``is_searched`` is for the search of an element. PostgreSQL stores JSONB then, and MySQL JSON.
    """

    impl = JSON
    cache_ok = True

    def __init__(self, shape: str, *, is_searched: bool = False) -> None:
        super().__init__(none_as_null=True)
        self.shape, self.is_searched = shape, is_searched

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if self.is_searched and dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.JSONB(none_as_null=True))
        return JSON(none_as_null=True) if self.is_searched else _JsonText(none_as_null=True)

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        # Drivers of PostgreSQL convert JSON, and raise an error for the whole result.
        return as_text(column, type_=self)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        del dialect, coltype
        return _parse


def _parse(value: str | bytes | None) -> Any:
    if value is None:
        return None
    # Most schedules have no args and no options.
    if value == "{}":
        return {}
    if value == "[]":
        return []
    try:
        # json.loads detects the encoding of bytes, which takes longer than parsing most rows.
        return json.loads(value.decode() if isinstance(value, bytes) else value)
    # Too many digits or levels.
    except (RecursionError, ValueError):
        return None


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


class Window(TypeDecorator[float | str]):
    """Seconds, or the share of an interval such as ``"50%"``, as text.

    A text that manual SQL has written, and that is neither, reads as the text.
    """

    impl = String(32)
    cache_ok = True

    def process_bind_param(self, value: float | str | None, dialect: Dialect) -> str | None:
        del dialect
        if value is None or isinstance(value, str):
            return value
        return f"{value:f}".rstrip("0").rstrip(".")

    def process_result_value(self, value: str | None, dialect: Dialect) -> float | str | None:
        del dialect
        if value is None or not _SECONDS.fullmatch(value):
            return value
        return float(value)


class ExactText(TypeDecorator[str]):
    """A text of at most ``length`` characters that is compared exactly, by code point.

    In MySQL's default collations "Bob" equals "bob"; in utf8mb4_bin it does not. PostgreSQL's
    collation of a language sorts "org:7/a" between "org70" and "org:7b"; the texts that begin with
    a prefix are then no range of an index.
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
        if dialect.name == "postgresql":
            return dialect.type_descriptor(String(self.length, collation="C"))
        # type_descriptor() would turn a Text column into a VARCHAR.
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
