"""A Dynbeat that the application made at import, on the database and clock of a test."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, delete
from sqlalchemy.orm import Session

from celery_dynbeat.client import Context, Dynbeat
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.db import schema
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.models import Base

#: What a Context makes at first use from its settings, its engine and its clock.
_MADE_ONCE = ("settings", "database", "clock", "notifier")


@contextmanager
def override(
    dynbeat: Dynbeat,
    *,
    database: str | Engine | None = None,
    clock: Clock | None = None,
) -> Iterator[Dynbeat]:
    """Let ``dynbeat`` use another database and clock until the block ends.

    For applications that make their ``dynbeat`` at import: code under test keeps its reference to
    it. ``database`` is a URL, or the engine of the application's own tests; the tables are created
    in it where they are missing. None keeps the database that is configured, likewise for
    ``clock``. Settings that a test has changed are read again. Not safe for several threads.
    """
    context = dynbeat.context
    saved = dict(vars(context))
    for name in _MADE_ONCE:
        vars(context).pop(name, None)
    vars(context)["_prepared"] = False
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
    """Give ``context`` its database; return it when its connections are ours to close."""
    if isinstance(database, Engine):
        context.shared_engine = database
        return None
    if database is None:
        return None
    context.shared_engine = None
    own = Database(database, engine_options=context.settings.engine_options)
    vars(context)["database"] = own
    return own


def delete_rows(dynbeat: Dynbeat) -> None:
    """Delete all rows of the tables: a database that several tests share keeps them otherwise."""

    def work(session: Session) -> None:
        for table in reversed(Base.metadata.sorted_tables):
            session.execute(delete(table))

    dynbeat.context.database.run(work)
