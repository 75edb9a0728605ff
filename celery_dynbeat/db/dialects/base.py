"""What the package asks of a database, whatever its kind."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar, TypeVar

from sqlalchemy import ColumnElement, Connection, GenerativeSelect, Table, delete, tuple_
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql.dml import Insert

S = TypeVar("S", bound=GenerativeSelect)

#: The name of the lock that a change of the schema takes.
SCHEMA_LOCK = "dynbeat_schema"


class Capabilities(ABC):
    """What one kind of database can do, and how it is asked."""

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

    def has_lost_statement(self, error: DBAPIError) -> bool:
        """Return whether the server does not know a statement that the driver prepared there."""
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
