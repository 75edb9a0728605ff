"""The database of the schedules: one engine per process, safe across fork.

``Database.run`` is the only way into a transaction of the package. It repeats a transaction that
the database rolled back because of concurrency: a deadlock, a serialization failure, a busy file.
That is normal and not an error.

Answers to each failure:

    deadlock, serialization, busy    repeat the transaction, ATTEMPTS times in all, with back-off
    server became read-only          drop the pooled connections; the next use connects again
    idle connection died             db.connections replaces it before its use
    server is silent                 db.connections: the connection times out
    pooler forgets statements        db.connections: prepare none
"""

import os
import re
import time
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import (
    URL,
    Connection,
    CursorResult,
    Engine,
    Update,
    create_engine,
    event,
    make_url,
)
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InterfaceError,
    NoSuchModuleError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool, QueuePool

from celery_dynbeat.common.clock import RANDOM
from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.db import alias_of, connections
from celery_dynbeat.db.dialects import (
    OWN_TRANSACTION,
    Capabilities,
    capabilities_of,
    check_supported,
    is_embedded,
)
from celery_dynbeat.db.statements import connection_of

if TYPE_CHECKING:
    from celery_dynbeat.db.django_databases import DatabaseAddress

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

ATTEMPTS = 6
_FIRST_PAUSE = 0.01
#: SQLAlchemy's name of a database -> the scheme of its URL, and the extra with its driver.
_DRIVERS = {
    "postgresql": ("postgresql+psycopg", "celery-dynbeat[postgres]"),
    "mysql": ("mysql+pymysql", "celery-dynbeat[mysql]"),
    "mariadb": ("mariadb+pymysql", "celery-dynbeat[mysql]"),
}
#: The values that a Database derives from its engine.
_OF_ENGINE = (
    *("_engine", "capabilities", "_uses_autocommit"),
    *("_autocommit_engine", "_transaction_engine"),
)
_SCHEME = re.compile(r"[a-z0-9+]{1,40}://", re.IGNORECASE)

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
#: In a forked process: connections of its parent.
_of_parents: list[object] = []
#: The session in which this thread, or this task of asyncio, works now.
_in_use: ContextVar[Session | None] = ContextVar("dynbeat_session", default=None)


def _forget_connections() -> None:
    # close=False, because the parent still uses these connections.
    for engine in _engines:
        engine.dispose(close=False)


def _close_files() -> None:
    # A child cannot lock a SQLite file that was open during the fork ("locking protocol").
    # Source: SQLite's "How To Corrupt An SQLite Database File", section 2.6.
    for engine in _engines:
        if is_embedded(engine.dialect.name) and isinstance(engine.pool, QueuePool):
            engine.dispose()


os.register_at_fork(before=_close_files, after_in_child=_forget_connections)


def check_synchronous(engine: object, *, given_as: str) -> None:
    """Raise ConfigurationError unless ``engine`` is an Engine with a synchronous driver."""
    if isinstance(engine, Engine) and not engine.dialect.is_async:
        return
    if not isinstance(engine, Engine) and not hasattr(engine, "sync_engine"):
        reason = f"is of type {type(engine).__name__}: give what sqlalchemy.create_engine() returns"
    else:
        reason = (
            "is asynchronous, and dynbeat calls its database synchronously: use"
            " postgresql+psycopg:// or mysql+pymysql:// in dynbeat_database_url, or in an engine of"
            " create_engine(); the rest of the application may stay asynchronous"
        )
    raise ConfigurationError(f"{given_as} {reason}")


@contextmanager
def in_use(session: Session | None) -> Iterator[Session | None]:
    """Let the block read the clock on the connection of ``session``, if there is one.

    A call that holds a connection must not wait for another connection, because its pool may have
    only one.
    """
    token = _in_use.set(session)
    try:
        yield session
    finally:
        _in_use.reset(token)


@contextmanager
def savepoint(session: Session | Connection) -> Iterator[None]:
    """Give the statements of the block a savepoint, and raise the error of the block.

    A session flushes its objects before. With its connection, changed rows are not written yet.

    After a deadlock, MySQL and MariaDB have rolled back the whole transaction. The savepoint no
    longer exists, so its rollback raises another error, which is not useful.
    """
    nested = session.begin_nested()
    try:
        yield
        nested.commit()
    except BaseException:
        with suppress(SQLAlchemyError):
            nested.rollback()
        raise


class Database:
    """The database with the tables of the package: by its URL, or an engine of the application."""

    def __init__(
        self,
        url: str | None = None,
        *,
        engine: Engine | None = None,
        engine_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._url = url
        self._options = dict(engine_options or {})
        self._shared = engine
        self._django_alias = None if engine is not None else alias_of(url or "")
        self._address: DatabaseAddress | None = None
        self._keeps_connection = False
        # The connection of ``execute``, its process, and when it was last used.
        self._kept: list[tuple[Connection, int, float]] = []

    @property
    def engine(self) -> Engine:
        """The engine, created at first use. A forked child never uses the parent's connections.

        Raises ConfigurationError when the URL is invalid or its driver is not installed.
        """
        self._follow_django()
        return self._engine

    @cached_property
    def _engine(self) -> Engine:
        engine = self._shared if self._shared is not None else self._create()
        _engines.add(engine)
        return engine

    def _follow_django(self) -> None:
        """Forget the engine if the alias of Django has another database than before."""
        if self._django_alias is None:
            return
        # A late import: few URLs name a database of Django.
        from celery_dynbeat.db import django_databases  # noqa: PLC0415

        address = django_databases.address_of(self._django_alias)
        if address == self._address:
            return
        if address.is_tested:
            django_databases.check_access(self._django_alias)
        self.dispose()
        for name in _OF_ENGINE:
            self.__dict__.pop(name, None)
        self._address = address

    @property
    def _tested_alias(self) -> str | None:
        """The alias of Django while its tests run, or else None."""
        return self._django_alias if self._address is not None and self._address.is_tested else None

    async def check_loop_of_django(self) -> None:
        """Raise an error in a test of Django whose transaction a thread would not join.

        For a caller in an event loop, whose thread may differ from the thread of the test.
        """
        self._follow_django()
        if self._tested_alias is not None:
            from celery_dynbeat.db import django_databases  # noqa: PLC0415 - see above

            await django_databases.check_own_connection_of_loop(self._tested_alias)

    def refuse_transaction_of_django(self) -> None:
        """Raise ConfigurationError if Django has a transaction of the alias in this thread."""
        alias = self._django_alias
        if alias is None:
            return
        from celery_dynbeat.db import django_databases  # noqa: PLC0415 - see above

        if not django_databases.is_in_transaction(alias):
            return
        raise ConfigurationError(
            f"a transaction of Django's database {alias!r} is open, and current_session does not"
            f" join it: give current_session for {alias!r}, as functools.partial(current_session,"
            f" {alias!r}) does, and use transaction.atomic() in place of set_autocommit(False)"
        )

    @cached_property
    def capabilities(self) -> Capabilities:
        """The capabilities of the database. Raises ConfigurationError if it is not supported."""
        try:
            return capabilities_of(self.engine.dialect)
        except NotImplementedError as error:
            raise ConfigurationError(str(error)) from error

    @property
    def supports_concurrent_writes(self) -> bool:
        """Whether two threads can write at the same time, each on its own connection."""
        pools = (QueuePool, NullPool)
        return not self.capabilities.embedded and isinstance(self.engine.pool, pools)

    def check_folder(self) -> None:
        """Raise ConfigurationError if the folder of an embedded database does not exist.

        Call it before the first use of the tables. A running process must not raise it, because the
        folder may be on a disk that is mounted again. The process waits for it, as it waits for a
        server.
        """
        file = embedded_file(self.engine.url)
        if file is None or file.parent.is_dir():
            return
        raise ConfigurationError(
            f"the folder {str(file.absolute().parent)!r} of dynbeat_database_url does not exist:"
            " create it, or correct the path; an absolute path has four slashes:"
            " sqlite:////srv/app.db"
        )

    @property
    def shown_url(self) -> str:
        """The URL without its password, for banners and logs."""
        # The query of the URL can also contain a password or a key.
        return self.engine.url.set(query={}).render_as_string(hide_password=True)

    @property
    def connect_args(self) -> Mapping[str, Any]:
        """The arguments of a connection that were given in addition to the URL."""
        self._follow_django()
        return {**self._address_args, **self._options.get("connect_args", {})}

    @property
    def _address_args(self) -> Mapping[str, Any]:
        return {} if self._address is None else self._address.connect_args

    def read_clock(self) -> datetime:
        """Return the current instant of the database, aware, in UTC.

        It is read on the connection of the session in use, or else on a connection of the pool.
        """
        if self.capabilities.embedded:
            # SQLite has no server clock. A query would also block on a pool of one connection,
            # which tests in memory have, inside the caller's transaction.
            return datetime.now(UTC)
        session = _in_use.get()
        if session is not None:
            return self.capabilities.read_clock(connection_of(session))
        self._return_kept()
        with self.engine.connect() as connection:
            return self.capabilities.read_clock(connection)

    def read(self, work: Callable[[Session], T]) -> T:
        """Return ``work(session)``, which only reads. Each query sees all committed rows."""
        with self._session(autocommit=True) as session:
            return work(session)

    def read_in_transaction(self, work: Callable[[Session], T]) -> T:
        """Return ``work(session)``, which only reads, in one transaction.

        For queries of many rows, which follow their index (``Capabilities.follow_indexes``).
        """
        with self._session() as session:
            self.capabilities.follow_indexes(session)
            return work(session)

    @cached_property
    def _uses_autocommit(self) -> bool:
        # In autocommit mode a statement has the server's default isolation level. Read it once.
        if not self.capabilities.autocommit_saves_round_trips:
            return False
        with self.engine.connect() as connection:
            return self.capabilities.defaults_to_read_committed(connection)

    def run_autocommit(self, work: Callable[[Session], T]) -> T:
        """Return ``work(session)``, whose statements are each valid as a separate transaction.

        On databases where autocommit saves round trips (one instead of three or four), each
        statement commits by itself. On other databases, this is ``run``.
        """
        if not self._uses_autocommit:
            return self.run(work)

        def in_autocommit() -> T:
            with self._session(autocommit=True) as session:
                result = work(session)
                session.commit()
                return result

        return self._repeat(in_autocommit)

    def execute(self, statement: Update, values: Mapping[str, Any]) -> int:
        """Execute one statement as a separate transaction, and return its row count.

        Raises what ``run`` raises.
        """
        return self._execute(statement, values, lambda result: int(result.rowcount))

    def execute_returning(self, statement: Update, values: Mapping[str, Any]) -> Sequence[Any]:
        """Execute an UPDATE as ``execute`` does, and return what its one column returns."""
        return self._execute(statement, values, lambda result: result.scalars().all())

    def _execute(
        self,
        statement: Update,
        values: Mapping[str, Any],
        read: Callable[[CursorResult[Any]], T],
    ) -> T:
        self._check_django()
        if not self._uses_autocommit:
            return self.run(lambda session: read(session.connection().execute(statement, values)))

        def execute() -> T:
            # Without a session: a worker executes one or two statements for each run.
            with self._connection_of_execute() as connection:
                return read(connection.execute(statement, values))

        return self._repeat(execute)

    def keep_connection(self) -> None:
        """Keep the connection of ``execute`` from now on: a pool process has no other use for it.

        The pool takes half of the processor time of a statement, to set the mode of the connection
        and to reset it. An engine of the application, and a pool of one connection, stay free.
        """
        pool = self.engine.pool
        # The pool checks a connection at its checkout.
        is_checked = not self._options.keys().isdisjoint({"pool_recycle", "pool_pre_ping"})
        self._keeps_connection = (
            self._shared is None
            and isinstance(pool, QueuePool)
            and pool.size() > 1
            and not is_checked
        )

    @contextmanager
    def _connection_of_execute(self) -> Iterator[Connection]:
        connection = self._take_kept() or self._autocommit_engine.connect()
        try:
            yield connection
        except BaseException:
            # The pool resets it, or replaces it if it is lost.
            connection.close()
            raise
        if self._keeps_connection and not self._kept:
            self._kept.append((connection, os.getpid(), time.monotonic()))
        else:
            connection.close()

    def _return_kept(self) -> None:
        """Return the kept connection to the pool, or the process would need a second one."""
        if kept := self._take_kept():
            kept.close()

    def _take_kept(self) -> Connection | None:
        try:
            # Another thread may take it first.
            kept = connection, pid, used_at = self._kept.pop()
        except IndexError:
            return None
        if pid != os.getpid():
            # Freed, it would be reset on the socket of the parent.
            _of_parents.append(kept)
            return None
        if time.monotonic() - used_at < connections.PING_AFTER_SECONDS:
            return connection
        connections.return_idle(connection, used_at)
        return None

    def run(
        self,
        work: Callable[[Session], T],
        *,
        follow_indexes: bool = True,
        asynchronous_commit: bool = False,
    ) -> T:
        """Return ``work(session)`` and commit; repeat it after a transient database error.

        ``work`` may run several times, so it must have no effect outside the transaction. Raises
        what ``work`` raises, or the last database error.

        With ``follow_indexes``, the transaction begins with ``Capabilities.follow_indexes``. Its
        statements then need no statistics of the tables.

        With ``asynchronous_commit``, the commit does not wait for the disk if the database is
        PostgreSQL. A crash of the server may then undo the transaction, but no transaction that
        committed before another one that was not undone.
        """

        def transaction() -> T:
            with self._session() as session:
                self.capabilities.begin_write(connection_of(session))
                if follow_indexes:
                    self.capabilities.follow_indexes(
                        session, asynchronous_commit=asynchronous_commit
                    )
                result = work(session)
                session.commit()
                return result

        return self._repeat(transaction)

    def run_in_parts(
        self,
        work: Callable[[Session, Sequence[K]], T],
        items: Sequence[K],
        *,
        in_transaction: bool = False,
    ) -> tuple[list[T], dict[K, DBAPIError]]:
        """Return the results of ``work(session, items)``, and the items that are refused.

        Usually this is one ``run_autocommit``, or one ``run`` with ``in_transaction``. If the
        database refuses the values of a row, the items are halved until the refused ones are alone.
        ``work`` may run several times for an item.
        """
        run = self.run if in_transaction else self.run_autocommit
        results: list[T] = []
        refused: dict[K, DBAPIError] = {}
        parts = [items] if items else []
        while parts:
            part = parts.pop()
            try:
                results.append(run(partial(_with_items, work=work, items=part)))
            except DBAPIError as error:
                if not self.capabilities.is_refusal(error):
                    raise
                if len(part) == 1:
                    refused[part[0]] = error
                else:
                    middle = len(part) // 2
                    parts += [part[middle:], part[:middle]]
        return results, refused

    def _repeat(self, transaction: Callable[[], T]) -> T:
        pause = _FIRST_PAUSE
        for _ in range(ATTEMPTS - 1):
            try:
                return transaction()
            except DBAPIError as error:
                if not self.capabilities.is_transient(error):
                    raise
            # Random, so that two transactions that collided do not collide again.
            self.sleep(pause * RANDOM.uniform(0.5, 1.5))
            pause *= 2
        return transaction()

    def is_outage(self, error: BaseException) -> bool:
        """Return whether ``error`` means that the database cannot be used at all.

        Any other error of a statement concerns this statement: it lacks a right, or its row is
        refused.
        """
        if not isinstance(error, DBAPIError):
            return isinstance(error, PoolTimeoutError)
        is_lost = error.connection_invalidated or isinstance(error, InterfaceError)
        return is_lost or self.capabilities.is_unavailable(error)

    def sleep(self, seconds: float) -> None:
        """Wait before another attempt."""
        time.sleep(seconds)

    @contextmanager
    def connection_without_timeouts(self) -> Iterator[Connection]:
        """Yield a connection without read and write timeouts, for a migration.

        On an engine of the application, the connection keeps the timeouts of that engine.
        """
        if self._shared is not None or self.capabilities.embedded:
            with self.engine.connect() as connection:
                yield connection
            return
        pool_options = {key for key in self._options if key.startswith(("pool", "max_overflow"))}
        own = {key: self._options[key] for key in self._options.keys() - pool_options}
        given = {**own, "poolclass": NullPool, "hide_parameters": True}
        given["connect_args"] = connections.connect_args_without_timeouts(
            self.engine.url, self.connect_args
        )
        url = self.engine.url.difference_update_query(connections.STATEMENT_TIMEOUTS)
        with create_engine(url, **given).connect() as connection:
            yield connection

    @cached_property
    def _autocommit_engine(self) -> Engine:
        # This engine shares the pool. SQLAlchemy resets a connection when it returns to the pool.
        return self.engine.execution_options(isolation_level="AUTOCOMMIT")

    @cached_property
    def _transaction_engine(self) -> Engine:
        # This engine also shares the pool.
        capabilities = self.capabilities
        if self._shared is None and capabilities.configures_isolation:
            return self.engine
        return self.engine.execution_options(**capabilities.execution_options)

    def _check_django(self) -> None:
        self._follow_django()
        if self._tested_alias is not None:
            from celery_dynbeat.db import django_databases  # noqa: PLC0415 - see above

            django_databases.check_own_connection(self._tested_alias)

    @contextmanager
    def _session(self, *, autocommit: bool = False) -> Iterator[Session]:
        self._check_django()
        is_autocommit = autocommit and self._uses_autocommit
        engine = self._autocommit_engine if is_autocommit else self._transaction_engine
        info = {} if is_autocommit else {OWN_TRANSACTION: True}
        self._return_kept()
        with Session(engine, expire_on_commit=False, info=info) as session, in_use(session):
            yield session

    def dispose(self) -> None:
        """Close the idle connections. The next use connects again."""
        if "_engine" in self.__dict__ and self._shared is None:
            if kept := self._take_kept():
                kept.close()
            self._engine.dispose()

    def _create(self) -> Engine:
        address = self._address
        try:
            url = make_url(self._url or "") if address is None else address.url
            if url.drivername == "postgres":
                # Hosting services still write the old name, which SQLAlchemy no longer knows.
                url = url.set(drivername=_DRIVERS["postgresql"][0])
            check_supported(url.get_backend_name())
            engine = create_engine(url, **self._options_for(url))
            capabilities = capabilities_of(engine.dialect)
        except NotImplementedError as error:
            raise ConfigurationError(f"dynbeat_database_url: {error}") from None
        except (ArgumentError, NoSuchModuleError, ValueError) as error:
            # The URL can contain a password: show only its scheme.
            scheme = _SCHEME.match(self._url or "")
            begins = f" that begins with {scheme[0]!r}" if scheme else ""
            msg = (
                f"dynbeat_database_url{begins} is not a URL that SQLAlchemy understands"
                f" ({type(error).__name__}): write it like"
                " postgresql+psycopg://user@host/database, or django://default in Django"
            )
            raise ConfigurationError(msg) from None
        except ModuleNotFoundError as error:
            raise self._driver_missing(url, error.name) from error
        if "@" in (url.host or ""):
            msg = "the host of dynbeat_database_url contains an @: write an @ in a password as %40"
            raise ConfigurationError(msg)
        check_synchronous(engine, given_as=f"the driver {url.drivername} of dynbeat_database_url")
        event.listen(engine, "connect", lambda dbapi, _record: capabilities.configure(dbapi))
        event.listen(
            engine, "handle_error", partial(_disconnect_from_read_only_server, capabilities)
        )
        if "prepare_threshold" not in self.connect_args:
            connections.disable_behind_poolers(engine, capabilities)
        connections.set_read_timeout(engine)
        if not is_embedded(engine.dialect.name):
            connections.ping_idle_connections(engine)
        return engine

    def _options_for(self, url: URL) -> dict[str, Any]:
        return {
            # Errors are logged, and parameters contain the arguments of tasks.
            "hide_parameters": True,
            **({} if self._address is None else self._address.engine_options),
            **self._options,
            "connect_args": connections.connect_args(url, self.connect_args),
        }

    def _driver_missing(self, url: URL, module: str | None) -> ConfigurationError:
        scheme, extra = _DRIVERS.get(url.get_backend_name(), (url.drivername, "it"))
        other = "" if url.drivername == scheme else f"write {scheme}://... and "
        return ConfigurationError(
            f"the driver {module!r} of dynbeat_database_url is not installed: {other}install"
            f" {extra}"
        )


def _with_items(
    session: Session, *, work: Callable[[Session, Sequence[K]], T], items: Sequence[K]
) -> T:
    return work(session, items)


def embedded_file(url: URL) -> Path | None:
    """Return the file of an embedded database, or None for a server or a database in memory."""
    if not is_embedded(url.get_backend_name()):
        return None
    name = url.database or ":memory:"
    # A URI may name a database in memory.
    return None if name.startswith((":memory:", "file:")) else Path(name)


def _disconnect_from_read_only_server(
    capabilities: Capabilities, context: ExceptionContext
) -> None:
    """Drop the pooled connections to a server that has become read-only.

    They still answer a ping, so nothing else replaces them with connections to the new primary.
    """
    error = context.sqlalchemy_exception
    if isinstance(error, DBAPIError) and capabilities.is_read_only(error):
        context.is_disconnect = True


#: Characters. A driver may quote a statement.
_REASON_LENGTH = 200


def reason_of(error: BaseException) -> str:
    """Return the class and the first line of a database error; only the class of another error.

    Another error may quote an argument of a task or a URL with its password.
    """
    # SQLAlchemy adds the statement to the driver's error.
    cause = getattr(error, "orig", None) or error
    name = type(cause).__name__
    text = str(cause).partition("\n")[0] if isinstance(error, SQLAlchemyError) else ""
    return f"{name}: {text[:_REASON_LENGTH]}" if text else name
