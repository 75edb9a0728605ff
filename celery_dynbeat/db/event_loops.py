"""Bind the pool of an asynchronous engine to one event loop at a time.

A connection of the pool belongs to the loop that opened it: aiomysql reads through a transport of
that loop, and the queue of the pool waits in it. In another loop they fail with "attached to a
different loop" or "Event loop is closed".
Source: SQLAlchemy, "Using multiple asyncio event loops".

    the loop shuts down             its connections are closed, in the loop
    another loop, the last closed   its connections are closed without it; a new pool
    another loop, the last stopped  its idle connections are closed without it; a new pool
    another loop, the last runs     ConfigurationError
    fork                            the child has a new pool, and leaves its parent's open

asyncio.run() and asyncio.Runner end each loop with ``loop.shutdown_asyncgens()``, which closes the
asynchronous generators of the loop. So a suspended generator closes the pool at that time.
"""

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.pool import ConnectionPoolEntry, Pool, QueuePool
from sqlalchemy.util import greenlet_spawn

from celery_dynbeat.common.errors import ConfigurationError

#: Seconds that a call waits for the threads of aiosqlite. Idle ones end at once.
_STOP_TIMEOUT = 1.0


@dataclass(eq=False, slots=True)
class _Binding:
    """The pool of one loop, and its connections. ``closer`` closes it when the loop shuts down."""

    loop: asyncio.AbstractEventLoop
    pool: Pool
    closer: AsyncGenerator[None, None]
    entries: weakref.WeakSet[ConnectionPoolEntry] = field(default_factory=weakref.WeakSet)


class LoopBoundPool:
    """The pool of ``engine``, for one event loop at a time.

    Pools without a queue are not bound: NullPool keeps no connection, and StaticPool has the one
    connection of a SQLite database in memory, which works in each loop.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._binding: _Binding | None = None
        self._lock = threading.Lock()
        event.listen(engine, "connect", self._add_entry)

    async def enter(self) -> None:
        """Use the pool in the running loop.

        Raises ConfigurationError if another loop, which is running, uses it.
        """
        loop, before = asyncio.get_running_loop(), self._binding
        if before is not None and before.loop is loop and before.pool is self._engine.pool:
            return
        if not isinstance(self._engine.pool, QueuePool):
            return
        with self._lock:
            left = self._leave(loop)
            closer = self._close_at_shutdown()
            self._binding = _Binding(loop, self._engine.pool, closer)
        await anext(closer)
        if left is not None:
            # It disposes only the pool of its own binding: it ends here without a wait.
            await left.closer.aclose()
            await _close_without_loop(left, driver=self._engine.dialect.driver)

    def _leave(self, loop: asyncio.AbstractEventLoop) -> _Binding | None:
        """Return the binding that ends because ``loop`` uses the pool."""
        left = self._binding
        if left is None:
            return None
        if left.pool is not self._engine.pool:
            # After a fork, its connections belong to the parent.
            left.entries.clear()
            return left
        if left.loop is not loop and left.loop.is_running():
            raise ConfigurationError(
                "AsyncDynbeat is in use in another event loop, which is running: create one"
                " AsyncDynbeat per event loop"
            )
        self._engine.dispose(close=False)
        return left

    async def dispose(self) -> None:
        """Close the idle connections. The next call connects again, in any loop.

        Raises ConfigurationError if another loop, which is running, uses them.
        """
        await self.enter()
        if self._binding is None:
            await self._replace()
        else:
            await self._binding.closer.aclose()

    async def _replace(self) -> None:
        pool = self._engine.pool
        # The next call uses another pool, also while the connections of this one close.
        self._engine.dispose(close=False)
        await greenlet_spawn(pool.dispose)

    async def _close_at_shutdown(self) -> AsyncGenerator[None, None]:
        binding = self._binding
        try:
            yield
        finally:
            if self._binding is binding:
                self._binding = None
                await self._replace()

    def _add_entry(self, _connection: Any, entry: ConnectionPoolEntry) -> None:
        if self._binding is not None:
            self._binding.entries.add(entry)


async def _close_without_loop(binding: _Binding, *, driver: str) -> None:
    """Close connections whose loop does not run; those in use only if it is closed."""
    stopping = set()
    for entry in list(binding.entries):
        connection: Any = entry.driver_connection
        if connection is None or (entry.in_use and not binding.loop.is_closed()):
            continue
        match driver:
            case "psycopg":
                connection.pgconn.finish()
            case "aiosqlite":
                stopping.add(connection.stop())
            case _:
                await _close_aiomysql(connection)
    if stopping:
        # A thread that waits for a lock, or ended with its loop, does not answer.
        await asyncio.wait(stopping, timeout=_STOP_TIMEOUT)


async def _close_aiomysql(connection: Any) -> None:
    # It ends the session of the server. Then its transport fails, because it needs its loop.
    with suppress(OSError, RuntimeError):
        await connection.ensure_closed()
    # A transport that is closing raises no error.
    connection.close()
