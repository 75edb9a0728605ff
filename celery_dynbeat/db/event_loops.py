"""The pools of an asynchronous engine. A connection belongs to the loop that opened it.

aiomysql reads through a transport of that loop, and the queue of a pool waits in it. In another
loop they fail with "attached to a different loop" or "Event loop is closed".
Source: SQLAlchemy, "Using multiple asyncio event loops".

At any time there are at most two pools. One belongs to a loop of the application, the other to a
thread, which makes the calls of all further loops that run at the same time. The number of
connections therefore does not grow with the number of loops, and a loop that ends after one call,
as the loop of a request in a threaded WSGI server, does not open a connection.

    the loop shuts down             its connections are closed, in the loop
    another loop, the last closed   its connections are closed without it; a new pool
    another loop, the last stopped  its idle connections are closed without it; a new pool
    another loop, the last runs     a thread with a loop makes the call
    fork                            the child has new pools, and leaves its parent's open
    the process exits               the thread closes its connections

asyncio.run() and asyncio.Runner end each loop with ``loop.shutdown_asyncgens()``, which closes the
asynchronous generators of the loop. A suspended generator therefore closes the pool at that time.
"""

import asyncio
import atexit
import threading
import weakref
from collections.abc import AsyncGenerator, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import event
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection, QueuePool
from sqlalchemy.util import greenlet_spawn

from celery_dynbeat.db.compat import await_

T = TypeVar("T")

#: Seconds that a call waits for the threads of aiosqlite. Idle ones end at once.
_STOP_TIMEOUT = 1.0


@dataclass(eq=False, slots=True)
class _Binding:
    """The pool of one loop, and its connections. ``closer`` closes it when the loop shuts down."""

    loop: asyncio.AbstractEventLoop
    pool: QueuePool
    closer: AsyncGenerator[None, None]
    entries: weakref.WeakSet[ConnectionPoolEntry] = field(default_factory=weakref.WeakSet)


class LoopThread:
    """A thread with an event loop, which runs until ``stop`` or the exit of the process.

    ``bindings`` contain the pool of its loop, which closes before it is garbage.
    """

    def __init__(self, bindings: object) -> None:
        self.loop = asyncio.new_event_loop()
        self._bindings = bindings
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="dynbeat-async", daemon=True)
        self._thread.start()
        atexit.register(self._exit)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._stopped.wait())
        atexit.unregister(self._exit)

    def _exit(self) -> None:
        self.stop()
        self._thread.join()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``work`` in the loop of the thread, with the caller's context.

        A cancellation of the caller cancels ``work``.
        """
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    def stop(self) -> None:
        """Cancel the calls in progress, and close the connections of the loop. Do not wait."""
        # A forked child has the object without the thread.
        if self._thread.is_alive():
            # The loop may be closed now.
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._stopped.set)


class LoopPools:
    """The pool of an asynchronous engine: the pool of the running event loop.

    ``template`` describes the pools of the loops, and opens no connection.
    """

    def __init__(self, template: QueuePool, *, driver: str) -> None:
        self._template, self._driver = template, driver
        self._bindings: dict[asyncio.AbstractEventLoop, _Binding] = {}
        self._thread: LoopThread | None = None
        self._lock = threading.Lock()
        self._of_parent: LoopPools | None = None

    def __getattr__(self, name: str) -> Any:
        # SQLAlchemy also uses private attributes of a pool.
        return getattr(self._here() or self._template, name)

    @property
    def dispatch(self) -> Any:
        """The listeners of the engine. Each new pool has the template's listeners."""
        return self._template.dispatch

    def connect(self) -> PoolProxiedConnection:
        """Return a connection of the running loop."""
        pool = self._here()
        if pool is None:
            # dispose() ran during a call, or another loop ran during a pause of this loop.
            binding = self._add(asyncio.get_running_loop())
            await_(anext(binding.closer))
            pool = binding.pool
        return pool.connect()

    def recreate(self) -> "LoopPools":
        """Return new pools. SQLAlchemy calls it after a fork, and then uses them."""
        new = LoopPools(self._template.recreate(), driver=self._driver)
        # If there were no reference, Python would close the connections and generators of the
        # parent.
        new._of_parent = self
        return new

    async def enter(self) -> LoopThread | None:
        """Return the thread that makes the calls of the running loop; None if the loop makes them.

        Only the first of several running loops makes its calls.
        """
        loop = asyncio.get_running_loop()
        if loop in self._bindings:
            return None
        with self._lock:
            left = self._leave_stopped()
            if self._bindings and self._thread is None:
                self._thread = LoopThread(self._bindings)
            thread = self._thread
            binding = self._add(loop) if thread is None else None
        if binding is not None:
            await anext(binding.closer)
        await self._close(left)
        return thread

    async def dispose_async(self) -> None:
        """Close the idle connections, except connections of another loop that is running."""
        with self._lock:
            left = self._leave_stopped()
            binding = self._bindings.get(asyncio.get_running_loop())
            thread = self._thread
        if binding is not None:
            await binding.closer.aclose()
        await self._close(left)
        if thread is not None and asyncio.get_running_loop() is not thread.loop:
            await thread.run(self.dispose_async())

    def stop_thread(self) -> None:
        """Stop the thread, which has references to the engine, so that both become garbage."""
        if self._thread is not None:
            self._thread.stop()

    def _here(self) -> QueuePool | None:
        try:
            binding = self._bindings.get(asyncio.get_running_loop())
        except RuntimeError:
            return None
        return None if binding is None else binding.pool

    def _add(self, loop: asyncio.AbstractEventLoop) -> _Binding:
        """Give ``loop`` a pool. The caller must start its ``closer``."""
        binding = _Binding(
            loop, self._template.recreate(), _close_at_shutdown(self._bindings, loop)
        )
        event.listen(binding.pool, "connect", lambda _, entry: binding.entries.add(entry))
        self._bindings[loop] = binding
        return binding

    def _leave_stopped(self) -> list[_Binding]:
        """Take the pools from loops that do not run, and return them."""
        left = [each for each in self._bindings.values() if not each.loop.is_running()]
        for each in left:
            del self._bindings[each.loop]
        return left

    async def _close(self, left: list[_Binding]) -> None:
        for each in left:
            # Its pool was taken from the loop, so it ends here without waiting.
            await each.closer.aclose()
            await _close_without_loop(each, driver=self._driver)


async def _close_at_shutdown(
    bindings: dict[asyncio.AbstractEventLoop, _Binding], loop: asyncio.AbstractEventLoop
) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        binding = bindings.pop(loop, None)
        if binding is not None:
            await greenlet_spawn(binding.pool.dispose)


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
                stopped = connection.stop()
                if stopped is not None:
                    stopping.add(stopped)
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
