"""The clock of a test, and the Dynbeat of an application with this clock and another database."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine, delete
from sqlalchemy.orm import Session

from celery_dynbeat.api import Dynbeat
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.db import schema
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.models import Base
from celery_dynbeat.process.context import Context

#: The objects that a Context creates at first use and then caches.
_CACHED = ("settings", "database", "clock", "notifier")


class FrozenClock:
    """A clock that only the test can move. Raises ValueError for naive datetimes."""

    def __init__(self, start: datetime) -> None:
        self._instant = _utc(start)

    def now(self) -> datetime:
        """Return the instant that the clock shows, in UTC."""
        return self._instant

    def steady_for(self) -> timedelta:
        """Return timedelta.max, because moving the clock counts as elapsed time, not as a step."""
        return timedelta.max

    def advance(self, duration: timedelta | float) -> datetime:
        """Move the clock by ``duration`` (a timedelta or seconds), and return the new instant.

        A negative duration sets the clock back.
        """
        seconds = duration if isinstance(duration, timedelta) else timedelta(seconds=duration)
        self._instant += seconds
        return self._instant

    def move_to(self, instant: datetime) -> datetime:
        """Set the clock to ``instant``, which may be in the past, and return it in UTC."""
        self._instant = _utc(instant)
        return self._instant


def _utc(instant: datetime) -> datetime:
    if instant.utcoffset() is None:
        msg = f"naive datetime {instant!r} rejected: use an aware one, such as datetime.now(UTC)"
        raise ValueError(msg)
    return instant.astimezone(UTC)


@contextmanager
def override(
    dynbeat: Dynbeat,
    *,
    database: str | Engine | None = None,
    clock: Clock | None = None,
) -> Iterator[Dynbeat]:
    """Make ``dynbeat`` use a different database and clock until the block ends.

    This is for applications that create their ``dynbeat`` at import, because the code under test
    keeps its reference. ``database`` is a URL, or the engine of the application's tests. Missing
    tables are created in it. If ``database`` or ``clock`` is None, it stays as configured. Settings
    are read again, so changes by the test take effect. This function must not be used in several
    threads at the same time.
    """
    context = dynbeat.context
    saved = dict(vars(context))
    for name in _CACHED:
        vars(context).pop(name, None)
    vars(context)["_prepared"] = None
    if clock is not None:
        context.given_clock = clock
    own = _use(context, database)
    try:
        if database is not None:
            schema.upgrade(context.database)
        yield dynbeat
    finally:
        if own is not None:
            own.engine.dispose()
        vars(context).clear()
        vars(context).update(saved)


def _use(context: Context, database: str | Engine | None) -> Database | None:
    """Set the database of ``context``; return it if the caller must close its connections."""
    if isinstance(database, Engine):
        context.shared_engine = database
        return None
    if database is None:
        return None
    context.shared_engine = None
    settings = context.settings
    own = Database(database, engine_options=settings.engine_options)
    vars(context)["database"] = own
    return own


def delete_rows(dynbeat: Dynbeat) -> None:
    """Delete all rows of the tables, so that tests can share a database."""

    def work(session: Session) -> None:
        for table in reversed(Base.metadata.sorted_tables):
            session.execute(delete(table))

    dynbeat.context.database.run(work)
