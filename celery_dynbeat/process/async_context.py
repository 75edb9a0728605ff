"""The context of asynchronous callers. Each call of the API runs in a greenlet.

``db.async_engine`` describes the greenlets.

A call holds at most one connection at a time. Any number of calls therefore make progress on a pool
of any size, because no call holds a connection while it waits for another.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cached_property
from typing import Any, Final, TypeVar

from celery import Celery
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session
from sqlalchemy.util import greenlet_spawn

from celery_dynbeat.common.clock import Clock
from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.db import TableNames, models
from celery_dynbeat.db.async_engine import AsyncDatabase, check_asynchronous
from celery_dynbeat.db.compat import await_
from celery_dynbeat.process.context import Context

T = TypeVar("T")

#: The session of an asynchronous caller.
AnyAsyncSession = AsyncSession | async_scoped_session[Any]

_END: Final = object()
#: Seconds between two tries of a first call, while another one prepares the tables.
_PREPARING_PAUSE = 0.01


class AsyncContext(Context):
    """The settings, database, clock and notifier of asynchronous callers.

    ``engine`` replaces the engine that the settings describe, ``clock`` the clock of the database.
    """

    def __init__(self, app: Celery, engine: AsyncEngine | None, clock: Clock | None) -> None:
        super().__init__(app, None, clock)
        if engine is not None:
            check_asynchronous(engine)
        self._async_engine = engine
        self._preparing = threading.Lock()

    @cached_property
    def database(self) -> AsyncDatabase:
        """The database of ``engine``, or else of the settings, with its asynchronous driver."""
        settings = self.settings
        models.use_names(TableNames(settings.schema, settings.table_prefix))
        info = self.session_info
        if self._async_engine is not None:
            return AsyncDatabase(engine=self._async_engine, session_info=info)
        options = settings.engine_options
        return AsyncDatabase(settings.database_url, engine_options=options, session_info=info)

    def compute(self, work: Callable[[], T]) -> T:
        """Return ``work()`` from a thread. Other tasks of the event loop continue."""
        return await_(asyncio.to_thread(work))

    async def call(self, session: object, work: Callable[[Session | None], T]) -> T:
        """Return ``work(session)``; ``session`` is the caller's AsyncSession or None.

        ``work`` calls the synchronous API. Raises InvalidScheduleError for any other ``session``.
        """
        joined = _session_to_join(session)
        if joined is not None:
            return await joined.run_sync(work)
        thread = await self.database.enter_loop()
        call = self._call(work)
        return await (call if thread is None else thread.run(call))

    async def _call(self, work: Callable[[Session | None], T]) -> T:
        """Return ``work(None)`` on a connection of the running loop."""
        if self._prepared is None:
            # Alembic is not reentrant, and neither is the first connection of an engine. Another
            # loop may hold the lock. Calls with a session only check the tables.
            while not self._preparing.acquire(blocking=False):  # noqa: ASYNC110 - of all loops
                await asyncio.sleep(_PREPARING_PAUSE)
            try:
                await greenlet_spawn(self.prepare)
            finally:
                self._preparing.release()
        return await greenlet_spawn(work, None)

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


def _session_to_join(session: object) -> AsyncSession | None:
    if session is None or isinstance(session, AsyncSession):
        return session
    if isinstance(session, async_scoped_session):
        scoped: AsyncSession = session()
        return scoped
    msg = (
        f"session = {shorten(session)}: must be a sqlalchemy.ext.asyncio.AsyncSession; omit it for"
        " a separate transaction, or call Dynbeat in place of AsyncDynbeat"
    )
    raise InvalidScheduleError(msg, field="session")
