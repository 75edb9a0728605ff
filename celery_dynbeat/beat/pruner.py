"""Prune old history and old changes, one small batch at a time.

Runs are pruned after dynbeat_history_retention, changes after dynbeat_audit_retention.

Run ids are ordered by time. A scan of the primary key therefore meets the oldest runs first and
needs no additional index. A scan starts every SCAN_INTERVAL. Each batch reads and deletes at most
BATCH_SIZE rows in a separate transaction, followed by a pause. So it delays due schedules only
briefly. These rows stay, at any age:

- runs that have not ended;
- while the schedule is not finished, the run of its last fire time and newer ones: after the clock
  is set back, beat must find the fire times that already had their run.

A batch of changes reads the start of the index on ``changed_at``.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row
from sqlalchemy.orm import Session

from celery_dynbeat.common.run_ids import first_run_id
from celery_dynbeat.db.models import REQUESTED_ORIGINS
from celery_dynbeat.store import changes, retention

BATCH_SIZE = 500
#: After a scan, the next one waits for at least this multiple of the scan's duration.
IDLE_FACTOR = 20
BATCH_PAUSE = timedelta(milliseconds=100)
SCAN_INTERVAL = timedelta(minutes=10)
#: The first scan after the start of beat waits this long: due schedules come first.
FIRST_DELAY = timedelta(minutes=1)
#: Less than every run id.
LOWEST_ID = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class Pruned:
    """The result of one batch. The next one starts after ``last_id``; None: the scan has ended."""

    deleted: int
    last_id: str | None


def prune(
    session: Session, *, now: datetime, older_than: timedelta, after: str = LOWEST_ID
) -> Pruned:
    """Delete the prunable runs among the next BATCH_SIZE runs after the id ``after``."""
    limit = now - older_than
    rows = retention.read_page(session, after=after, before=first_run_id(limit), limit=BATCH_SIZE)
    prunable_ids = [row.id for row in rows if _is_prunable(row, limit)]
    deleted = retention.delete_finished(session, prunable_ids)
    return Pruned(deleted, rows[-1].id if len(rows) == BATCH_SIZE else None)


def _is_prunable(row: Row[Any], limit: datetime) -> bool:
    if row.finished_at is None or row.finished_at >= limit:
        return False
    if row.schedule_id is None or row.over_at is not None or row.origin in REQUESTED_ORIGINS:
        # No trigger yields the instant of such a run. A finished schedule yields none at all.
        return True
    last = row.last_run_at or row.next_fire_at
    return last is not None and row.scheduled_for < last


def prune_changes(session: Session, *, now: datetime, older_than: timedelta) -> int:
    """Delete up to BATCH_SIZE old changes and return their number."""
    return changes.delete_before(session, before=now - older_than, limit=BATCH_SIZE)


class PruneTimer:
    """When the next batch of a prune is due."""

    def __init__(self) -> None:
        self._checked_at: datetime | None = None
        self.next_at: datetime | None = None

    def is_due(self, now: datetime) -> bool:
        """Return whether to prune a batch now."""
        if self.next_at is None:
            self.next_at = now + FIRST_DELAY
        if self._checked_at is not None and now < self._checked_at:
            # The clock was set back.
            self.next_at = min(self.next_at, now + SCAN_INTERVAL)
        self._checked_at = now
        return self.next_at <= now


class PruneCursor(PruneTimer):
    """The position of one beat's scan, and when its next batch is due."""

    def __init__(self) -> None:
        super().__init__()
        self._after: str | None = None
        self._scan_started_at: datetime | None = None

    def prune(self, session: Session, *, now: datetime, older_than: timedelta) -> Pruned:
        """Prune the batch at the cursor, without moving it: the transaction may be repeated."""
        return prune(session, now=now, older_than=older_than, after=self._after or LOWEST_ID)

    def advance(self, pruned: Pruned, *, now: datetime) -> None:
        """Move the cursor after the batch was committed."""
        self._after = pruned.last_id
        started_at = self._scan_started_at or now
        if pruned.last_id is not None:
            self._scan_started_at, self.next_at = started_at, now + BATCH_PAUSE
            return
        # A scan also reads the rows that stay. After a long scan the next one starts later.
        self._scan_started_at = None
        self.next_at = now + max(SCAN_INTERVAL, IDLE_FACTOR * (now - started_at))


class ChangeTimer(PruneTimer):
    """When one beat prunes its next batch of changes."""

    def advance(self, deleted: int, *, now: datetime) -> None:
        """Set when the next batch is due, after one was committed."""
        self.next_at = now + (BATCH_PAUSE if deleted == BATCH_SIZE else SCAN_INTERVAL)
