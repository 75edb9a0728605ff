"""The duty that reports due schedules whose trigger this version does not support."""

from datetime import datetime
from functools import partial

from celery_dynbeat.db.engine import Database
from celery_dynbeat.store.schedules import due
from celery_dynbeat.telemetry import emit, events, has_listeners
from celery_dynbeat.triggers import KINDS

#: The maximum number of schedules that are reported.
MAX_WARNED = 20


class Unsupported:
    """Reports each schedule once, as long as it is due."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reported = frozenset[int]()

    def run(self, now: datetime) -> None:
        """Report the schedules that were not reported before."""
        find = partial(due.find_unsupported, now=now, limit=MAX_WARNED)
        rows = self._database.read_in_transaction(find)
        for row in rows:
            if row.id not in self._reported and has_listeners(events.TriggerUnsupported):
                event = events.TriggerUnsupported(
                    schedule_id=row.id,
                    owner=row.owner,
                    schedule=row.name,
                    trigger_kind=row.trigger_kind,
                    supported=", ".join(KINDS),
                )
                emit(event)
        self._reported = frozenset(row.id for row in rows)
