"""One application for all examples of a property test; its tables are emptied between examples."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from sqlalchemy import delete

from celery_dynbeat import Dynbeat
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.db.models import Base
from tests.support.applications import application

#: ``DYNBEAT_EXAMPLES=n`` runs n times as many examples.
EXAMPLE_FACTOR = int(os.environ.get("DYNBEAT_EXAMPLES", "1"))


@contextlib.contextmanager
def prepared_application(url: str, *, clock: Clock, **settings: Any) -> Iterator[Dynbeat]:
    """Yield an application with tables."""
    with application(url, clock=clock, **settings) as dynbeat:
        dynbeat.context.prepare()
        yield dynbeat


def delete_all_rows(dynbeat: Dynbeat) -> None:
    """Delete all rows of all tables."""
    with dynbeat.context.database.engine.begin() as connection:
        for table in reversed(Base.metadata.sorted_tables):
            connection.execute(delete(table))
