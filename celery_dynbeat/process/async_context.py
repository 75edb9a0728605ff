"""The context of asynchronous callers: threads, or the session of the caller, make the calls.

    no session         a thread of a bounded executor makes the call, with the pool of ``Dynbeat``
    an AsyncSession    ``run_sync`` makes the call on the connection of the session

No driver, pool or event loop is particular to asyncio, so a call works in every event loop.
"""

import asyncio
import contextvars
import os
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy.orm import Session

from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.errors import InvalidArgumentError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.db.engine import Database
from celery_dynbeat.process.context import Context

if TYPE_CHECKING:
    # Not at run time: the module needs greenlet, and a caller without a session does not.
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

    AnyAsyncSession = AsyncSession | async_scoped_session[Any]
else:
    AnyAsyncSession = Any

T = TypeVar("T")

#: Calls that are in progress at the same time. Each further call waits for a thread.
MAX_THREADS = 10

_END: Final = object()


class AsyncContext(Context):
    """The context of ``AsyncDynbeat``: that of ``sync``, without its ``current_session``.

    A thread of the executor has no transaction of the application to join.
    """

    def __init__(self, sync: Context, clock: Clock | None) -> None:
        super().__init__(sync.app, sync.shared_engine, clock or sync.given_clock)
        self._sync = sync
        self._executor: ThreadPoolExecutor | None = None
        self._executor_pid = 0

    @property
    def database(self) -> Database:
        """The database of the synchronous calls, with its pool."""
        return self._sync.database

    async def call(self, session: object, work: Callable[[Session | None], T]) -> T:
        """Return ``work(session)``; ``session`` is the caller's AsyncSession or None.

        ``work`` calls the synchronous API. Raises InvalidArgumentError for any other ``session``.
        """
        if session is not None:
            result: T = await _run_sync_of(session)(work)
            return result
        await self.database.check_loop_of_django()
        return await self.in_thread(partial(work, None))

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Return ``work()`` from a thread, with the context variables of the caller.

        If the caller is cancelled, work that has begun continues to its end. Work that still waits
        for a thread is not done.
        """
        in_context = partial(contextvars.copy_context().run, work)
        return await asyncio.get_running_loop().run_in_executor(self._threads(), in_context)

    def _threads(self) -> ThreadPoolExecutor:
        # A forked child has the executor of its parent without the threads.
        if self._executor is None or self._executor_pid != os.getpid():
            self._executor = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="dynbeat-async")
            self._executor_pid = os.getpid()
        return self._executor

    async def iterate(
        self, session: object, work: Callable[[Session | None], Iterator[T]]
    ) -> AsyncIterator[T]:
        """Yield the items of the iterator ``work(session)``."""
        iterator = await self.call(session, work)
        while True:
            item: Any = await self.call(session, lambda _session: next(iterator, _END))
            if item is _END:
                return
            yield item


def _run_sync_of(session: object) -> Callable[..., Any]:
    """Return ``run_sync`` of an AsyncSession, or of the session of an ``async_scoped_session``."""
    of_scope = session() if callable(session) else session
    run_sync: Callable[..., Any] | None = getattr(of_scope, "run_sync", None)
    if run_sync is not None:
        return run_sync
    msg = (
        f"session = {shorten(session)}: must be a sqlalchemy.ext.asyncio.AsyncSession; omit it for"
        " a separate transaction, or call Dynbeat in place of AsyncDynbeat"
    )
    raise InvalidArgumentError(msg, field="session")
