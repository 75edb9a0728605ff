"""AsyncDynbeat: the API of an asyncio application."""

from contextlib import AbstractContextManager
from functools import cached_property

from celery import Celery

from celery_dynbeat.api import Dynbeat
from celery_dynbeat.api.async_calls import AsyncCalendars, AsyncSchedules
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.process.async_context import AsyncContext


class AsyncDynbeat:
    """The schedules of a Celery application, for asyncio. Await each call.

    - A call without ``session`` is made by one of ten threads, on a connection of the pool of
      ``sync``. A call with an ``AsyncSession`` is made on the connection of this session.
    - ``clock`` replaces the clock of the database, for tests.
    - ``sync`` is the application's Dynbeat, for beat and the workers. AsyncDynbeat creates it if
      the application has none. To share an engine, create it first: ``Dynbeat(app, engine=...)``.

    AsyncDynbeat works in any number of event loops. If the task that awaits a call is cancelled, a
    call that has begun continues to its end, and commits.
    """

    def __init__(self, app: Celery, *, clock: Clock | None = None) -> None:
        self.app = app
        given = getattr(app, "dynbeat", None)
        self.sync = given if isinstance(given, Dynbeat) else Dynbeat(app, clock=clock)
        self.context = AsyncContext(self.sync.context, clock)

    @cached_property
    def schedules(self) -> AsyncSchedules:
        """The schedules of all owners."""
        return AsyncSchedules(self.context)

    @cached_property
    def calendars(self) -> AsyncCalendars:
        """The shared calendars of the application. Triggers refer to them by name."""
        return AsyncCalendars(self.context)

    @staticmethod
    def acting(*, actor: str, reason: str = "") -> AbstractContextManager[None]:
        """Record ``actor`` and ``reason`` in the audit of each edit in the block.

        Like ``Dynbeat.acting``, this is a plain ``with`` block. Each asyncio task has its own actor
        and reason.
        """
        return Dynbeat.acting(actor=actor, reason=reason)

    async def dispose(self) -> None:
        """Close the idle connections of the pool of ``sync``. The next call connects again.

        An engine that you passed to the Dynbeat stays open.
        """
        await self.context.in_thread(self.context.database.dispose)
