"""Retention: history that is older than dynbeat_history_retention goes, a small batch at a time.

Ids are ordered by time, so a walk along the primary key meets the oldest runs first and needs no
index of its own. It begins anew every EVERY; between, each batch reads and deletes at most BATCH
rows in a transaction of its own, with a pause behind it, so that it delays what is due by a moment
only. These stay, however old:

- what has not ended;
- while its schedule goes on, the run for the last fire time, and what is newer than it: a clock
  that is set back must find the fire times that had their run.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row
from sqlalchemy.orm import Session

from celery_dynbeat.common.run_ids import first_run_id
from celery_dynbeat.db.models import Origin
from celery_dynbeat.store import retention

BATCH = 500
#: A walk rests for so many times as long as it took.
REST = 20
PAUSE = timedelta(milliseconds=100)
EVERY = timedelta(minutes=10)
#: A beat that has just started has better to do.
FIRST_AFTER = timedelta(minutes=1)
#: Below every id.
BEGINNING = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class Pruned:
    """What one batch did; ``last_id`` is where the next goes on, None when the walk is over."""

    deleted: int
    last_id: str | None


def prune(
    session: Session, *, now: datetime, older_than: timedelta, after: str = BEGINNING
) -> Pruned:
    """Delete what may go of the next BATCH runs behind the id ``after``."""
    limit = now - older_than
    rows = retention.read_page(session, after=after, before=first_run_id(limit), limit=BATCH)
    doomed = [row.id for row in rows if _may_go(row, limit)]
    deleted = retention.delete_finished(session, doomed)
    return Pruned(deleted, rows[-1].id if len(rows) == BATCH else None)


def _may_go(row: Row[Any], limit: datetime) -> bool:
    if row.finished_at is None or row.finished_at >= limit:
        return False
    if row.schedule_id is None or row.over_at is not None or row.origin == Origin.MANUAL:
        # No trigger yields the instant of a manual run, nor one of a schedule that is over.
        return True
    last = row.last_run_at or row.next_fire_at
    return last is not None and row.scheduled_for < last


class Walk:
    """Where the walk of one beat is, and when it goes on."""

    def __init__(self) -> None:
        self._after: str | None = None
        self._began_at: datetime | None = None
        self._seen_at: datetime | None = None
        self.next_at: datetime | None = None

    def is_due(self, now: datetime) -> bool:
        """Return whether to prune a batch now."""
        if self.next_at is None:
            self.next_at = now + FIRST_AFTER
        if self._seen_at is not None and now < self._seen_at:
            # The clock went back.
            self.next_at = min(self.next_at, now + EVERY)
        self._seen_at = now
        return self.next_at <= now

    def step(self, session: Session, *, now: datetime, older_than: timedelta) -> Pruned:
        """Prune a batch where the walk stands."""
        return prune(session, now=now, older_than=older_than, after=self._after or BEGINNING)

    def go_on(self, pruned: Pruned, *, now: datetime) -> None:
        """Note what ``step`` did, when it is committed."""
        self._after = pruned.last_id
        began_at = self._began_at or now
        if pruned.last_id is not None:
            self._began_at, self.next_at = began_at, now + PAUSE
            return
        # What stays is walked past, too: a walk that took long is not begun again soon.
        self._began_at = None
        self.next_at = now + max(EVERY, REST * (now - began_at))
