"""What differs between the databases, as capabilities. The only place that knows their names.

Sources: PostgreSQL's appendix A (error codes), MySQL's server error reference, SQLite's "Result and
Error Codes" and "Transactions".
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Dialect,
    Executable,
    FromClause,
    GenerativeSelect,
    Table,
    and_,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    text,
    tuple_,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.dml import Insert
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import DateTime

S = TypeVar("S", bound=GenerativeSelect)

CHANNEL = "dynbeat_change"
_SCHEMA_LOCK = "dynbeat_schema"
#: Ten seconds in all.
_WAL_TRIES, _WAL_PAUSE = 500, 0.02


class utc_now(FunctionElement[datetime]):  # noqa: N801 - reads as the SQL function that it is
    """The database's present instant in UTC, for server defaults."""

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
    # In brackets: MySQL takes an expression for a default only so.
    return "(utc_timestamp(6))"


class Capabilities(ABC):
    """What one kind of database can do, and how it is asked."""

    #: SQLAlchemy's dialect names.
    names: ClassVar[frozenset[str]]
    #: Options of a transaction of ours on an engine that is not.
    execution_options: ClassVar[dict[str, Any]] = {}
    #: Whether a committed change can wake beat through the database itself.
    notifies: ClassVar[bool] = False
    #: Whether a file holds the database, so that tables may be created without asking.
    embedded: ClassVar[bool] = False
    #: Whether a parameter may be a document, which the database takes apart into rows.
    takes_rows_from_json: ClassVar[bool] = False
    #: Whether a statement outside of a transaction saves the round trips of its begin and its end.
    commits_statements: ClassVar[bool] = False

    def begin_write(self, session: Session) -> None:  # noqa: B027 - most need nothing
        """Make the transaction one that no other writer can invalidate."""

    def configure(self, dbapi_connection: Any) -> None:  # noqa: B027 - most need nothing
        """Prepare a new connection of an engine of ours."""

    def read_clock(self, connection: Connection) -> datetime:
        """Return the database's present instant, aware, in UTC. An embedded one has no clock."""
        raise NotImplementedError

    @abstractmethod
    def insert_new(self, table: Table) -> Insert:
        """Return an INSERT that passes over rows whose unique key exists; rowcount omits them."""

    @abstractmethod
    def insert_or_lock(self, table: Table) -> Insert:
        """Return an INSERT that locks the row instead where its primary key exists."""

    def latest(self, statement: S) -> S:
        """Return ``statement`` as one that sees what was committed before ``insert_or_lock``."""
        # PostgreSQL and SQLite refuse a write behind a snapshot that is older.
        return statement

    def delete(self, connection: Connection, table: Table, ids: Sequence[str]) -> None:
        """Delete the rows with these ids of runs, waiting for the locks of no others."""
        connection.execute(delete(table).where(table.c.id.in_(ids)))

    def behind(self, columns: tuple[Any, Any], key: tuple[object, object]) -> ColumnElement[bool]:
        """Return the condition that two columns come behind ``key``, as the bound of an index."""
        return tuple_(*columns) > tuple_(*key)

    @abstractmethod
    def is_transient(self, error: DBAPIError) -> bool:
        """Return whether the same transaction may succeed when run again."""

    def is_read_only(self, error: DBAPIError) -> bool:
        """Return whether the server takes no writes, as one that another has replaced."""
        del error
        return False

    @abstractmethod
    def has_tag(self, column: InstrumentedAttribute[list[str]], tag: str) -> ColumnElement[bool]:
        """Return the condition that the JSON list in ``column`` contains ``tag``."""

    @abstractmethod
    def lock_schema(self, connection: Connection) -> None:
        """Wait until no other process changes the schema; held to the end of the transaction."""

    def unlock_schema(self, connection: Connection) -> None:  # noqa: B027 - most need nothing
        """Give back a schema lock that the end of the transaction does not."""


class PostgreSql(Capabilities):
    """PostgreSQL 13 and later."""

    names = frozenset({"postgresql"})
    notifies = True
    takes_rows_from_json = True
    commits_statements = True
    # serialization_failure, deadlock_detected, lock_not_available
    _transient = frozenset({"40001", "40P01", "55P03"})

    def read_clock(self, connection: Connection) -> datetime:
        instant: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
        return instant.astimezone(UTC)

    def insert_new(self, table: Table) -> Insert:
        return postgresql.insert(table).on_conflict_do_nothing()

    def insert_or_lock(self, table: Table) -> Insert:
        new = postgresql.insert(table)
        key = {column.name: new.excluded[column.name] for column in table.primary_key}
        return new.on_conflict_do_update(index_elements=list(key), set_=key)

    def is_transient(self, error: DBAPIError) -> bool:
        return _sqlstate(error) in self._transient

    def is_read_only(self, error: DBAPIError) -> bool:
        # read_only_sql_transaction
        return _sqlstate(error) == "25006"

    def has_tag(self, column: InstrumentedAttribute[list[str]], tag: str) -> ColumnElement[bool]:
        return column.op("@>")(literal([tag], type_=postgresql.JSONB()))

    def lock_schema(self, connection: Connection) -> None:
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtext(_SCHEMA_LOCK))))


_DELETE = """
    DELETE {table}
    FROM JSON_TABLE(:ids, '$[*]' COLUMNS (id CHAR(36) PATH '$')) AS doomed
    STRAIGHT_JOIN {table}
      ON {table}.id = CAST(doomed.id AS CHAR(36) CHARACTER SET ascii) COLLATE ascii_bin
"""


class MySql(Capabilities):
    """MySQL 8.0.22 and MariaDB 10.6, and later."""

    names = frozenset({"mysql", "mariadb"})
    # REPEATABLE READ locks gaps, and two beats would wait for each other's.
    execution_options: ClassVar[dict[str, Any]] = {"isolation_level": "READ COMMITTED"}
    # ER_LOCK_DEADLOCK, ER_LOCK_WAIT_TIMEOUT, ER_CHECKREAD
    _transient = frozenset({1213, 1205, 1020})
    # ER_OPTION_PREVENTS_STATEMENT, ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION, ER_READ_ONLY_MODE
    _read_only = frozenset({1290, 1792, 1836})

    def configure(self, dbapi_connection: Any) -> None:
        with dbapi_connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def read_clock(self, connection: Connection) -> datetime:
        instant: datetime = connection.execute(select(func.utc_timestamp(text("6")))).scalar_one()
        return instant.replace(tzinfo=UTC)

    def insert_new(self, table: Table) -> Insert:
        return insert(table).prefix_with("IGNORE")

    def insert_or_lock(self, table: Table) -> Insert:
        key = {column.name: column for column in table.primary_key}
        return mysql.insert(table).on_duplicate_key_update(key)

    def latest(self, statement: S) -> S:
        # At REPEATABLE READ only a locking read looks past the snapshot.
        return statement.with_for_update(read=True)

    def delete(self, connection: Connection, table: Table, ids: Sequence[str]) -> None:
        # Given a list of ids, InnoDB would rather scan a small table, and wait for what it meets.
        statement = text(_DELETE.format(table=table.name))
        connection.execute(statement, {"ids": json.dumps(list(ids))})

    def behind(self, columns: tuple[Any, Any], key: tuple[object, object]) -> ColumnElement[bool]:
        # Of rows that are compared, InnoDB's optimizer makes no range.
        (first, second), (first_key, second_key) = columns, key
        return or_(first > first_key, and_(first == first_key, second > second_key))

    def is_transient(self, error: DBAPIError) -> bool:
        return _number(error) in self._transient

    def is_read_only(self, error: DBAPIError) -> bool:
        return _number(error) in self._read_only

    def has_tag(self, column: InstrumentedAttribute[list[str]], tag: str) -> ColumnElement[bool]:
        # MariaDB compares what is written: a letter beyond ASCII may stand there as an escape.
        written = {json.dumps(tag), json.dumps(tag, ensure_ascii=False)}
        return or_(*(func.json_contains(column, text) == 1 for text in sorted(written)))

    def lock_schema(self, connection: Connection) -> None:
        # Data definition commits by itself here, so the lock belongs to the connection.
        connection.execute(select(func.get_lock(_SCHEMA_LOCK, 60)))

    def unlock_schema(self, connection: Connection) -> None:
        connection.execute(select(func.release_lock(_SCHEMA_LOCK)))


class Sqlite(Capabilities):
    """SQLite 3.35 and later, in WAL mode: readers and the one writer do not wait for each other."""

    names = frozenset({"sqlite"})
    embedded = True

    def begin_write(self, session: Session) -> None:
        # A write as the first statement takes the write lock at once, waiting for it as long as
        # the busy timeout; a transaction that begins by reading fails when it comes to write.
        session.execute(text("UPDATE dynbeat_schedule SET id = id WHERE 0 = 1"))

    def configure(self, dbapi_connection: Any) -> None:
        cursor = dbapi_connection.cursor()
        cursor.execute("PRAGMA busy_timeout = 30000")
        cursor.execute("PRAGMA foreign_keys = ON")
        _use_wal(cursor)
        cursor.close()

    def insert_new(self, table: Table) -> Insert:
        return sqlite.insert(table).on_conflict_do_nothing()

    def insert_or_lock(self, table: Table) -> Insert:
        new = sqlite.insert(table)
        key = {column.name: new.excluded[column.name] for column in table.primary_key}
        return new.on_conflict_do_update(index_elements=list(key), set_=key)

    def is_transient(self, error: DBAPIError) -> bool:
        return getattr(error.orig, "sqlite_errorname", "").startswith(
            ("SQLITE_BUSY", "SQLITE_LOCKED"),
        )

    def has_tag(self, column: InstrumentedAttribute[list[str]], tag: str) -> ColumnElement[bool]:
        items: FromClause = func.json_each(column).table_valued("value")
        return exists(select(literal(1)).select_from(items).where(items.c.value == tag))

    def lock_schema(self, connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _use_wal(cursor: Any) -> None:
    """Switch the file to WAL, once for its life.

    While others switch it or write, SQLite refuses without asking the busy timeout.
    """
    for tried in range(_WAL_TRIES):
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except Exception as error:
            name = getattr(error, "sqlite_errorname", "")
            if not name.startswith("SQLITE_BUSY") or tried == _WAL_TRIES - 1:
                raise
            time.sleep(_WAL_PAUSE)
        else:
            return


_KNOWN: tuple[Capabilities, ...] = (PostgreSql(), MySql(), Sqlite())


def capabilities_of(dialect: Dialect) -> Capabilities:
    """Return what the database behind ``dialect`` can do.

    Raises NotImplementedError for a database that this package was not built for.
    """
    for known in _KNOWN:
        if dialect.name in known.names:
            return known
    supported = ", ".join(sorted(name for known in _KNOWN for name in known.names))
    msg = f"database {dialect.name!r} is not supported; use one of: {supported}"
    raise NotImplementedError(msg)


def is_embedded(name: str) -> bool:
    """Return whether the database that SQLAlchemy calls ``name`` is a file of this machine."""
    return name in Sqlite.names


def notify_statement() -> Executable:
    """Return the statement that wakes the listening beats when its transaction commits."""
    return select(func.pg_notify(CHANNEL, ""))


def _number(error: DBAPIError) -> int | None:
    arguments: tuple[Any, ...] = getattr(error.orig, "args", ())
    return arguments[0] if arguments else None


def _sqlstate(error: DBAPIError) -> str:
    # psycopg says sqlstate, psycopg2 pgcode.
    state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
    return state or ""
