"""The database for asynchronous callers: the same code with an asynchronous driver.

SQLAlchemy runs synchronous code in a greenlet. There, each wait for the driver suspends the asyncio
task, and the event loop continues. So ``AsyncDatabase`` is ``Database`` with another driver: all
its methods that use a connection must run in ``sqlalchemy.util.greenlet_spawn``.

A cancellation, for example by ``asyncio.timeout``, raises CancelledError at such a wait. Then
SQLAlchemy closes the connection, and the server rolls back its transaction.

psycopg and aiomysql have no read timeout for asyncio, so the caller limits the time of a call.
"""

import asyncio
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool
from sqlalchemy.util import greenlet_spawn

from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.db import connections, django_databases
from celery_dynbeat.db.compat import await_
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.event_loops import LoopPools, LoopThread

#: SQLAlchemy's name of a database -> its asynchronous driver, and the extras with the driver.
_ASYNC_DRIVERS = {
    "postgresql": ("psycopg", "celery-dynbeat[async,postgres]"),
    "mysql": ("aiomysql", "celery-dynbeat[async]"),
    "mariadb": ("aiomysql", "celery-dynbeat[async]"),
    "sqlite": ("aiosqlite", "celery-dynbeat[async]"),
}


def check_asynchronous(engine: object) -> None:
    """Raise ConfigurationError unless ``engine`` is an AsyncEngine."""
    if isinstance(engine, AsyncEngine):
        return
    raise ConfigurationError(
        f"engine is of type {type(engine).__name__}: give AsyncDynbeat what"
        " sqlalchemy.ext.asyncio.create_async_engine() returns, or omit it"
    )


class AsyncDatabase(Database):
    """A Database with the asynchronous driver for the URL, or on an AsyncEngine.

    Use it in a greenlet, after ``enter_loop``.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        engine: AsyncEngine | None = None,
        engine_options: Mapping[str, Any] | None = None,
        session_info: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            url,
            engine=None if engine is None else engine.sync_engine,
            engine_options=engine_options,
            session_info=session_info,
        )

    async def enter_loop(self) -> LoopThread | None:
        """Return the thread that must make the calls of the running event loop, if any.

        ``db.event_loops`` describes it. An engine of the application has no such thread.
        """
        pools: object = self.engine.pool
        if self._tested_alias is not None:
            await django_databases.check_own_connection_of_loop(self._tested_alias)
        return await pools.enter() if isinstance(pools, LoopPools) else None

    @contextmanager
    def _session(self, *, autocommit: bool = False) -> Iterator[Session]:
        with super()._session(autocommit=autocommit) as session:
            # SQLAlchemy sets the options of an engine in the constructor of Connection. After a
            # cancellation there, only the garbage collector would find the connection.
            options = session.get_bind().get_execution_options()
            session.bind = self.engine
            session.connection(execution_options=options)
            yield session

    async def dispose_async(self) -> None:
        """Close the idle connections. The next call connects again, in any loop."""
        pools: object = self.engine.pool
        if isinstance(pools, LoopPools):
            await pools.dispose_async()
        else:
            await greenlet_spawn(self.dispose)

    def sleep(self, seconds: float) -> None:
        """Wait before another attempt. Other tasks of the event loop continue."""
        await_(asyncio.sleep(seconds))

    def _driver_url(self, url: URL) -> URL:
        backend = url.get_backend_name()
        driver = _ASYNC_DRIVERS[backend][0] if backend in _ASYNC_DRIVERS else None
        # The drivers have no such options, neither in the URL nor as arguments.
        named = url if driver is None else url.set(drivername=f"{backend}+{driver}")
        return named.difference_update_query(connections.STATEMENT_TIMEOUTS)

    def _options_for(self, url: URL) -> dict[str, Any]:
        options = super()._options_for(url)
        given = options["connect_args"]
        kept = {key: given[key] for key in given if key not in connections.STATEMENT_TIMEOUTS}
        if url.get_driver_name() == "aiomysql" and "connect_timeout" not in url.query:
            kept.setdefault("connect_timeout", connections.CONNECT_TIMEOUT)
        return {**options, "connect_args": kept}

    def _make_engine(self, url: URL, options: Mapping[str, Any]) -> Engine:
        try:
            engine = create_async_engine(url, **options).sync_engine
        except ImportError as error:
            raise self._driver_missing(url, error.name) from error
        if engine.dialect.driver == "aiosqlite":
            # Only here is aiosqlite installed for certain.
            from celery_dynbeat.db import async_sqlite  # noqa: PLC0415

            async_sqlite.survive_cancellations(engine)
        # Others work in each loop: NullPool keeps no connection, and StaticPool has the one
        # connection of a SQLite database in memory.
        if isinstance(engine.pool, QueuePool):
            shared: Any = engine
            shared.pool = LoopPools(engine.pool, driver=engine.dialect.driver)
            # A fork replaces the pool: the lambda stops the thread of the pool in use.
            weakref.finalize(self, lambda: shared.pool.stop_thread())  # noqa: PLW0108
        return engine

    def _check_driver(self, engine: Engine, url: URL) -> None:
        # _driver_url chose an asynchronous driver.
        del engine, url

    def _driver_missing(self, url: URL, module: str | None) -> ConfigurationError:
        driver, extra = _ASYNC_DRIVERS.get(url.get_backend_name(), (url.drivername, "it"))
        return ConfigurationError(
            f"the asynchronous driver {module or driver!r} is not installed: install {extra}"
        )
