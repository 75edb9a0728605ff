"""Faults of a test's database, as an administrator or an accident causes them."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError

from tests.support.databases import administration
from tests.support.fault_servers import Services
from tests.support.servers import MySQLServer
from tests.support.waiting import holds_for, wait_until

LOGIN_SECONDS = 0.2
FREE_CONNECTION_WITHIN = 2.0


class DatabaseFaults(ABC):
    """The faults of one kind of database. They affect only the account of one test."""

    def __init__(self, services: Services) -> None:
        self._url = services.database_server.url
        self._application_url = services.database_url
        self._name = services.database

    def terminate_sessions(self) -> int:
        """Terminate all sessions in the database and return their number."""
        return self._execute(*self._terminate())

    @abstractmethod
    def exhausted(self) -> AbstractContextManager[None]:
        """Terminate all sessions, and make the server reject new connections in the block."""

    @abstractmethod
    def read_only(self) -> AbstractContextManager[None]:
        """Fail over to a read-only server, and back at the end of the block.

        All sessions end at the start. Sessions that start in the block stay read-only after it,
        like sessions to a server that was replaced.
        """

    @abstractmethod
    def _terminate(self) -> list[str]:
        """Return the statements that end all sessions."""

    def _execute(self, *statements: str) -> int:
        with administration(self._url) as connection:
            for statement in statements:
                # The session may have ended: MariaDB's "Unknown thread id".
                with contextlib.suppress(DBAPIError):
                    connection.execute(text(statement))
        return len(statements)

    def _read(self, statement: str) -> list[str]:
        with administration(self._url) as connection:
            return [str(value) for value in connection.execute(text(statement)).scalars()]

    def is_refused(self) -> bool:
        """Return whether the application's account cannot log in."""
        engine = create_engine(self._application_url, poolclass=NullPool)
        try:
            engine.connect().close()
        except DBAPIError:
            return True
        return False


class PostgreSqlFaults(DatabaseFaults):
    """Faults of PostgreSQL."""

    def _terminate(self) -> list[str]:
        pids = self._read(
            f"SELECT pid FROM pg_stat_activity WHERE datname = '{self._name}'"
            " AND backend_type = 'client backend'"
        )
        return [f"SELECT pg_terminate_backend({pid})" for pid in pids]

    @contextmanager
    def exhausted(self) -> Iterator[None]:
        """Set the connection limit of the account to 0 (error 53300, as on a full server)."""
        self._execute(f"ALTER ROLE {self._name} CONNECTION LIMIT 0")
        self.terminate_sessions()
        try:
            yield
        finally:
            self._execute(f"ALTER ROLE {self._name} CONNECTION LIMIT -1")

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Make new sessions read-only."""
        self._execute(f"ALTER DATABASE {self._name} SET default_transaction_read_only = on")
        self.terminate_sessions()
        try:
            yield
        finally:
            self._execute(f"ALTER DATABASE {self._name} RESET default_transaction_read_only")


class ConnectionHolder:
    """Opens connections and keeps them until ``stack`` ends."""

    def __init__(self, url: str, stack: contextlib.ExitStack) -> None:
        self._engine = create_engine(url, poolclass=NullPool)
        self._stack = stack

    def opens_connection(self) -> bool:
        """Open one more connection; return False if the server rejects it."""
        with contextlib.suppress(DBAPIError):
            self._stack.callback(self._engine.connect().close)
            return True
        return False


class MariaDbFaults(DatabaseFaults):
    """Faults of MariaDB, or of MySQL in its place."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        is_mysql = isinstance(services.database_server, MySQLServer)
        self._read_only_variable = "transaction_read_only" if is_mysql else "tx_read_only"

    def _terminate(self) -> list[str]:
        return self._read(self._kills())

    def _kills(self) -> str:
        sessions = f"information_schema.processlist WHERE db = '{self._name}'"
        return f"SELECT concat('KILL ', id) FROM {sessions}"

    @contextmanager
    def exhausted(self) -> Iterator[None]:
        """Fill the server with idle sessions of root up to its limit (error 1040)."""
        with contextlib.ExitStack() as stack:
            # Connect first: later the server may reject the connection.
            administrator = stack.enter_context(administration(self._url))
            stack.callback(self._execute, "SET GLOBAL max_connections = 500")
            # The minimum of MariaDB.
            administrator.execute(text("SET GLOBAL max_connections = 10"))
            holder = ConnectionHolder(self._url, stack)
            while holder.opens_connection():
                pass

            def is_filled() -> bool:
                for (statement,) in administrator.execute(text(self._kills())).all():
                    # The session may have ended: "Unknown thread id".
                    with contextlib.suppress(DBAPIError):
                        administrator.execute(text(statement))
                    wait_until(holder.opens_connection, within=FREE_CONNECTION_WITHIN)
                # A session that is logging in is not in the list yet.
                return holds_for(has_no_sessions, seconds=LOGIN_SECONDS) and self.is_refused()

            def has_no_sessions() -> bool:
                return not administrator.execute(text(self._kills())).all()

            wait_until(is_filled, within=20)
            yield

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Make new sessions read-only (error 1792)."""
        self._execute(f"SET GLOBAL {self._read_only_variable} = 1")
        self.terminate_sessions()
        try:
            yield
        finally:
            self._execute(f"SET GLOBAL {self._read_only_variable} = 0")


def faults_of(services: Services) -> DatabaseFaults:
    """Return the faults for the kind of database of the test."""
    kinds = {"postgresql": PostgreSqlFaults, "mariadb": MariaDbFaults}
    return kinds[services.combination.database](services)
