"""The differences between the databases, as capabilities. Only this package knows their names.

A process uses one database, so it imports only that database's dialect.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Dialect,
    GenerativeSelect,
    Select,
    String,
    Table,
    delete,
    func,
    inspect,
    tuple_,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql.dml import Insert

S = TypeVar("S", bound=GenerativeSelect)

#: A key of ``Session.info``: a transaction of the package.
OWN_TRANSACTION = "dynbeat_own_transaction"
#: The name of the lock for a change of the schema.
SCHEMA_LOCK = "dynbeat_schema"


class Capabilities(ABC):
    """The capabilities of one kind of database."""

    #: Execution options of a transaction of the package.
    execution_options: ClassVar[dict[str, Any]] = {}
    #: Whether ``configure`` sets the isolation level, once per connection of the package's engine.
    configures_isolation: ClassVar[bool] = False
    #: Whether the database itself can notify beat of a committed change.
    notifies: ClassVar[bool] = False
    #: Whether the database is a local file, so that the tables are created by default.
    embedded: ClassVar[bool] = False
    #: Whether the database converts a JSON parameter into rows (json_to_recordset).
    has_json_recordset: ClassVar[bool] = False
    #: Whether the database supports LATERAL, arrays and ANY.
    has_lateral: ClassVar[bool] = False
    #: Whether a query uses a partial index if its condition implies the index's condition. SQLite
    #: compares the texts.
    has_partial_indexes: ClassVar[bool] = False
    #: Whether ORDER BY may begin with columns that the conditions fix (IS NULL, =). Without them,
    #: PostgreSQL does not use the index for IS NULL; with them, MariaDB sorts all rows.
    orders_by_fixed_columns: ClassVar[bool] = True
    #: Whether a locking read that finds no row locks the gap, so that two inserts can deadlock.
    locks_gaps: ClassVar[bool] = False
    #: Whether the row count of ``insert_new`` shows how many rows are new.
    counts_new_rows: ClassVar[bool] = True
    #: Whether autocommit saves the round trips of BEGIN and COMMIT.
    autocommit_saves_round_trips: ClassVar[bool] = False

    def defaults_to_read_committed(self, connection: Connection) -> bool:
        """Return whether a statement in autocommit mode runs at READ COMMITTED."""
        del connection
        return True

    def begin_write(self, connection: Connection) -> None:  # noqa: B027 - most need nothing
        """Start a write transaction that no other writer can invalidate."""

    def follow_indexes(  # noqa: B027 - SQL of most databases has hints for it
        self, session: Session, *, asynchronous_commit: bool = False
    ) -> None:
        """Make the statements of a transaction of the package follow indexes, without sorting.

        With ``asynchronous_commit``, its commit does not wait for the disk where that is possible.
        """

    def check_deferred(self, session: Session) -> None:  # noqa: B027 - most have none
        """Check the constraints that are deferred to the commit, and from then on at once."""

    def refresh_statistics(self, session: Session, table: Table) -> None:  # noqa: B027 - as below
        """Count the rows of a table that was just loaded, for plans by costs."""

    def configure(self, dbapi_connection: Any) -> None:  # noqa: B027 - most need nothing
        """Set up a new connection of the package's engine."""

    def loses_commits(self, connection: Connection) -> bool:
        """Return whether a crash of the server can undo a commit of this connection."""
        del connection
        return False

    def read_clock(self, connection: Connection) -> datetime:
        """Return the current instant of the database, aware, in UTC. SQLite has no clock."""
        raise NotImplementedError

    def why_no_schema(self, name: str) -> str | None:
        """Return why no schema can have this name, or None if one can."""
        del name
        return None

    def search_path(self, connection: Connection) -> str:
        """Return the schemas in which names without a schema are searched; "" if there are none."""
        del connection
        return ""

    def schemas_of(self, connection: Connection, table: str) -> Sequence[str]:
        """Return the schemas with a table of this name, if a search path selects the schema."""
        del connection, table
        return ()

    def has_schema(self, connection: Connection, name: str) -> bool:
        """Return whether the schema exists, and the account sees it."""
        return name in inspect(connection).get_schema_names()

    def entering_schema(self, quoted: str) -> str:
        """Return the statement after which names without a schema are in ``schema``.

        On MySQL and MariaDB a schema is a database. Raises NotImplementedError for SQLite.
        """
        raise NotImplementedError

    def in_schema(self, connection: Connection, quoted: str) -> AbstractContextManager[None]:
        """Execute ``entering_schema`` for the block, in a transaction of ``connection``."""
        raise NotImplementedError

    def limited_encoding(self, connection: Connection) -> str | None:
        """Return the database's encoding if it cannot store every text, else None."""
        del connection
        return None

    def is_unstorable(self, error: DBAPIError) -> bool:
        """Return whether the error is a letter that the database's encoding cannot store."""
        del error
        return False

    @abstractmethod
    def insert_new(self, table: Table) -> Insert:
        """Return an INSERT that skips rows whose unique key exists, and no others.

        The row count omits them if ``counts_new_rows``.
        """

    def is_duplicate(self, error: DBAPIError) -> bool:
        """Return whether the unique key of a row exists. Only without ``counts_new_rows``."""
        del error
        return False

    @abstractmethod
    def insert_or_lock(self, table: Table) -> Insert:
        """Return an INSERT that locks the row if its primary key exists."""

    def reading_latest(self, statement: S) -> S:
        """Return ``statement`` in a form that sees all commits before ``insert_or_lock``."""
        # PostgreSQL and SQLite raise an error for a write in a transaction with an older snapshot.
        return statement

    def share_unlocked(self, statement: Select[Any]) -> Select[Any]:
        """Return ``statement`` with share locks, without the rows that another transaction locks.

        SQLite has no row locks. There the write lock of the transaction keeps two beats apart.
        """
        return statement.with_for_update(read=True, skip_locked=True)

    def delete(
        self, connection: Connection, table: Table, ids: Sequence[str] | Sequence[int]
    ) -> None:
        """Delete the rows with these ids. It waits for locks on these rows only."""
        connection.execute(delete(table).where(table.c.id.in_(ids)))

    def row_after(
        self, columns: tuple[Any, Any], key: tuple[object, object]
    ) -> ColumnElement[bool]:
        """Return the condition ``columns > key`` in a form that is a range of an index."""
        return tuple_(*columns) > tuple_(*key)

    def row_until(
        self, columns: tuple[Any, Any], key: tuple[object, object]
    ) -> ColumnElement[bool]:
        """Return the condition ``columns <= key`` in a form that is a range of an index."""
        return tuple_(*columns) <= tuple_(*key)

    def ends_transaction(self, error: DBAPIError) -> bool:
        """Return whether the database has rolled back the transaction, with all savepoints."""
        del error
        return False

    @abstractmethod
    def is_transient(self, error: DBAPIError) -> bool:
        """Return whether the same transaction can succeed when it is repeated."""

    def is_read_only(self, error: DBAPIError) -> bool:
        """Return whether the server is read-only, as after a failover."""
        del error
        return False

    def is_prepared_statement_lost(self, error: DBAPIError) -> bool:
        """Return whether the server does not know a statement that the driver prepared."""
        del error
        return False

    @abstractmethod
    def is_unavailable(self, error: DBAPIError) -> bool:
        """Return whether the server cannot work for this process: stopped, full, read-only."""

    @abstractmethod
    def is_refusal(self, error: DBAPIError) -> bool:
        """Return whether the database refuses the values of a row, so other rows may be accepted.

        A constraint, a trigger or a row-level security policy refuses them, or they do not fit the
        column. A missing right on the table concerns all rows, so it is no refusal.
        """

    def minute_of(self, column: Any) -> ColumnElement[str]:
        """Return the minute of an instant in UTC, as ``YYYY-MM-DD hh:mm``."""
        return func.substr(column, 1, 16, type_=String())

    @abstractmethod
    def has_tag(self, column: InstrumentedAttribute[list[str]], tag: str) -> ColumnElement[bool]:
        """Return the condition that the JSON list in ``column`` contains ``tag``."""

    @abstractmethod
    def lock_schema(self, connection: Connection) -> bool:
        """Lock the schema until the end of the transaction. Return False if another process did.

        SQLite waits for its write lock, and raises the error of the driver.
        """

    def unlock_schema(self, connection: Connection) -> None:  # noqa: B027 - most need nothing
        """Release a schema lock that the end of the transaction does not release."""


_EMBEDDED = "sqlite"
#: SQLAlchemy's name of a dialect -> module in this folder, and its class.
_KNOWN = {
    "postgresql": ("postgresql", "PostgreSql"),
    "mysql": ("mysql", "MySql"),
    "mariadb": ("mysql", "MySql"),
    _EMBEDDED: ("sqlite", "Sqlite"),
}


def capabilities_of(dialect: Dialect) -> Capabilities:
    """Return the capabilities of the database of ``dialect``.

    Raises NotImplementedError for a database that this package does not support.
    """
    check_supported(dialect.name)
    return _capabilities(*_KNOWN[dialect.name])


def check_supported(name: str) -> None:
    """Raise NotImplementedError if this package does not support the database ``name``."""
    if name not in _KNOWN:
        supported = ", ".join(sorted(_KNOWN))
        msg = f"database {name!r} is not supported; use one of: {supported}"
        raise NotImplementedError(msg)


@cache
def _capabilities(module: str, name: str) -> Capabilities:
    made: Capabilities = getattr(import_module(f"{__name__}.{module}"), name)()
    return made


def is_embedded(name: str) -> bool:
    """Return whether the dialect ``name`` stores its database in a local file."""
    return name == _EMBEDDED


__all__ = ["Capabilities", "capabilities_of", "check_supported", "is_embedded"]
