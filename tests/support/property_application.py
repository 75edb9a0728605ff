"""One application for all examples of a property test; its tables are emptied between examples."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from sqlalchemy import delete, event

from celery_dynbeat import Dynbeat
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.db.models import Base
from tests.support.applications import application

#: ``DYNBEAT_EXAMPLES=n`` runs n times as many examples.
EXAMPLE_FACTOR = int(os.environ.get("DYNBEAT_EXAMPLES", "1"))


@contextlib.contextmanager
def prepared_application(url: str, *, clock: Clock, **settings: Any) -> Iterator[Dynbeat]:
    """Yield an application with tables. On SQLite, commits do not wait for the disk."""
    with application(url, clock=clock, **settings) as dynbeat:
        database = dynbeat.context.database
        if database.capabilities.embedded:
            event.listen(database.engine, "connect", _disable_fsync)
        dynbeat.context.prepare()
        yield dynbeat


def delete_all_rows(dynbeat: Dynbeat) -> None:
    """Delete all rows of all tables."""
    with dynbeat.context.database.engine.begin() as connection:
        for table in reversed(Base.metadata.sorted_tables):
            connection.execute(delete(table))


def _disable_fsync(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA synchronous = OFF")
