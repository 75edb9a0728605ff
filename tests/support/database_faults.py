"""What an administrator, or an accident, does to the database of one test."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError

from tests.support.databases import administration
from tests.support.fault_servers import Services
from tests.support.waiting import holds_for, wait_until

LOGIN_TAKES = 0.2
PLACE_IS_FREE_WITHIN = 2.0


class DatabaseFaults(ABC):
    """The faults of one kind of database; they concern the account of one test."""

    def __init__(self, services: Services) -> None:
        self._url = services.database_server.url
        self._application_url = services.database_url
        self._name = services.database

    def terminate_sessions(self) -> int:
        """End all sessions in the database, in the middle of whatever they do; return how many."""
        return self._execute(*self._terminate())

    @abstractmethod
    def exhausted(self) -> AbstractContextManager[None]:
        """Within it there is no connection left; those that were open are ended first."""

    @abstractmethod
    def read_only(self) -> AbstractContextManager[None]:
        """Fail over to a server that takes no writes, and back.

        All sessions end at the beginning. Those that begin within it stay read-only afterwards, as
        those to a server do that was replaced.
        """

    @abstractmethod
    def _terminate(self) -> list[str]:
        """Return the statements that end all sessions."""

    def _execute(self, *statements: str) -> int:
        with administration(self._url) as connection:
            for statement in statements:
                # A session may have ended by itself: MariaDB's "Unknown thread id".
                with contextlib.suppress(DBAPIError):
                    connection.execute(text(statement))
        return len(statements)

    def _read(self, statement: str) -> list[str]:
        with administration(self._url) as connection:
            return [str(value) for value in connection.execute(text(statement)).scalars()]

    def is_refused(self) -> bool:
        """Tell whether the application's account cannot log in."""
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
        """Leave the account no connection; the error is that of a server that is full (53300)."""
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


class Occupant:
    """Takes up one connection after the other, until ``stack`` ends."""

    def __init__(self, url: str, stack: contextlib.ExitStack) -> None:
        self._engine = create_engine(url, poolclass=NullPool)
        self._stack = stack

    def takes_a_place(self) -> bool:
        """Take up one more connection; False when there is none."""
        with contextlib.suppress(DBAPIError):
            self._stack.callback(self._engine.connect().close)
            return True
        return False


class MariaDbFaults(DatabaseFaults):
    """Faults of MariaDB."""

    def _terminate(self) -> list[str]:
        return self._read(self._kills())

    def _kills(self) -> str:
        sessions = f"information_schema.processlist WHERE db = '{self._name}'"
        return f"SELECT concat('KILL ', id) FROM {sessions}"

    @contextmanager
    def exhausted(self) -> Iterator[None]:
        """Fill the server with idle sessions of root up to its limit (error 1040)."""
        with contextlib.ExitStack() as stack:
            # Opened first, for afterwards there may be no room for it.
            administrator = stack.enter_context(administration(self._url))
            stack.callback(self._execute, "SET GLOBAL max_connections = 500")
            # The least that MariaDB allows.
            administrator.execute(text("SET GLOBAL max_connections = 10"))
            occupant = Occupant(self._url, stack)
            while occupant.takes_a_place():
                pass

            def filled() -> bool:
                for (statement,) in administrator.execute(text(self._kills())).all():
                    # It may have ended by itself: "Unknown thread id".
                    with contextlib.suppress(DBAPIError):
                        administrator.execute(text(statement))
                    wait_until(occupant.takes_a_place, within=PLACE_IS_FREE_WITHIN)
                # Who is logging in is not in the list yet.
                return holds_for(nobody_is_in, seconds=LOGIN_TAKES) and self.is_refused()

            def nobody_is_in() -> bool:
                return not administrator.execute(text(self._kills())).all()

            wait_until(filled, within=20)
            yield

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Make new sessions read-only (error 1792)."""
        self._execute("SET GLOBAL tx_read_only = 1")
        self.terminate_sessions()
        try:
            yield
        finally:
            self._execute("SET GLOBAL tx_read_only = 0")


def faults_of(services: Services) -> DatabaseFaults:
    """Return the faults of the kind of database that a test has."""
    kinds = {"postgresql": PostgreSqlFaults, "mariadb": MariaDbFaults}
    return kinds[services.combination.database](services)
