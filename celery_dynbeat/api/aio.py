"""AsyncDynbeat: the API of an asyncio application."""

from contextlib import AbstractContextManager
from functools import cached_property

from celery import Celery

try:
    # SQLAlchemy 2.0 would import it at the first call.
    import greenlet  # noqa: F401
    from sqlalchemy.ext.asyncio import AsyncEngine
except ImportError as error:
    raise ImportError(
        f"AsyncDynbeat needs greenlet ({error.__cause__ or error}):"
        ' pip install "celery-dynbeat[async]"'
    ) from error

from celery_dynbeat.api import Dynbeat
from celery_dynbeat.api.async_calls import AsyncCalendars, AsyncSchedules
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.process.async_context import AsyncContext


class AsyncDynbeat:
    """The schedules of a Celery application, for asyncio. Await each call.

    - ``engine`` is an AsyncEngine to share. If you omit it, AsyncDynbeat opens a pool with the
      asynchronous driver for dynbeat_database_url.
    - ``clock`` replaces the clock of the database, for tests.
    - ``sync`` is the application's Dynbeat, for beat and the workers. AsyncDynbeat creates it if
      the application has none. To pass an ``engine`` to the Dynbeat, create it before AsyncDynbeat.

    AsyncDynbeat works in any number of event loops. While one loop uses its pool, a thread makes
    the calls of all other running loops on a second pool. If you pass an ``engine``, follow
    SQLAlchemy's rules for an AsyncEngine in several event loops. Raises ConfigurationError if
    ``engine`` is not an AsyncEngine.
    """

    def __init__(
        self,
        app: Celery,
        *,
        engine: AsyncEngine | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.app = app
        given = getattr(app, "dynbeat", None)
        self.sync = given if isinstance(given, Dynbeat) else Dynbeat(app, clock=clock)
        self.context = AsyncContext(app, engine, clock)

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
        """Close the idle connections of the pool that AsyncDynbeat opened.

        The next call connects again. asyncio.run() does the same at its end. An ``engine`` that you
        passed stays open.
        """
        await self.context.database.dispose_async()
