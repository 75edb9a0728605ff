"""What the package asks of a database, whatever its kind."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any, ClassVar, TypeVar

from sqlalchemy import ColumnElement, Connection, GenerativeSelect, Table, delete, tuple_
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql.dml import Insert

S = TypeVar("S", bound=GenerativeSelect)

#: In ``Session.info``: the session is one transaction of ours, or statements that stand alone.
OWN_TRANSACTION, AUTOCOMMIT = "dynbeat_own_transaction", "dynbeat_alone"
#: The name of the lock that a change of the schema takes.
SCHEMA_LOCK = "dynbeat_schema"


class Capabilities(ABC):
    """What one kind of database can do, and how it is asked."""

    #: Options of a transaction of ours.
    execution_options: ClassVar[dict[str, Any]] = {}
    #: Whether ``configure`` gives them to each connection of an engine of ours, once and for all.
    configures_isolation: ClassVar[bool] = False
    #: Whether a committed change can wake beat through the database itself.
    notifies: ClassVar[bool] = False
    #: Whether a file holds the database, so that tables may be created without asking.
    embedded: ClassVar[bool] = False
    #: Whether a parameter may be a document, which the database takes apart into rows.
    has_json_recordset: ClassVar[bool] = False
    #: Whether a query may be asked once for each row of another one.
    has_lateral: ClassVar[bool] = False
    #: Whether a statement outside of a transaction saves the round trips of its begin and its end.
    autocommit_saves_round_trips: ClassVar[bool] = False

    def defaults_to_read_committed(self, connection: Connection) -> bool:
        """Return whether a statement that stands alone has the isolation level of ours, too."""
        del connection
        return True

    def begin_write(self, session: Session) -> None:  # noqa: B027 - most need nothing
        """Make the transaction one that no other writer can invalidate."""

    def in_index_order(self, session: Session, *, mapper: Any) -> AbstractContextManager[None]:
        """Keep the statements of the block to indexes, where the statements cannot say so.

        ``mapper`` is what the session chooses its database by.
        """
        del session, mapper
        return nullcontext()

    def configure(self, dbapi_connection: Any) -> None:  # noqa: B027 - most need nothing
        """Prepare a new connection of an engine of ours."""

    def read_clock(self, connection: Connection) -> datetime:
        """Return the database's present instant, aware, in UTC. An embedded one has no clock."""
        raise NotImplementedError

    def limited_encoding(self, connection: Connection) -> str | None:
        """Return the database's encoding where it cannot store every text, else None."""
        del connection
        return None

    def is_unstorable(self, error: DBAPIError) -> bool:
        """Return whether the database's encoding has no such letter."""
        del error
        return False

    @abstractmethod
    def insert_new(self, table: Table) -> Insert:
        """Return an INSERT that passes over rows whose unique key exists; rowcount omits them."""

    @abstractmethod
    def insert_or_lock(self, table: Table) -> Insert:
        """Return an INSERT that locks the row instead where its primary key exists."""

    def reading_latest(self, statement: S) -> S:
        """Return ``statement`` as one that sees what was committed before ``insert_or_lock``."""
        # PostgreSQL and SQLite refuse a write behind a snapshot that is older.
        return statement

    def delete(self, connection: Connection, table: Table, ids: Sequence[str]) -> None:
        """Delete the rows with these ids of runs, waiting for the locks of no others."""
        connection.execute(delete(table).where(table.c.id.in_(ids)))

    def row_after(
        self, columns: tuple[Any, Any], key: tuple[object, object]
    ) -> ColumnElement[bool]:
        """Return the condition that two columns come behind ``key``, as the bound of an index."""
        return tuple_(*columns) > tuple_(*key)

    @abstractmethod
    def is_transient(self, error: DBAPIError) -> bool:
        """Return whether the same transaction may succeed when run again."""

    def is_read_only(self, error: DBAPIError) -> bool:
        """Return whether the server takes no writes, as one that another has replaced."""
        del error
        return False

    def is_prepared_statement_lost(self, error: DBAPIError) -> bool:
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
