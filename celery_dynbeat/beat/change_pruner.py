"""Prune changes that are older than dynbeat_audit_retention, one small batch at a time.

A batch reads the start of the index on ``changed_at``, and deletes at most BATCH_SIZE rows in a
separate transaction, followed by a pause.
"""

from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from celery_dynbeat.beat.pruner import BATCH_PAUSE, BATCH_SIZE, SCAN_INTERVAL, PruneTimer
from celery_dynbeat.store import changes


def prune_changes(session: Session, *, now: datetime, older_than: timedelta) -> int:
    """Delete up to BATCH_SIZE old changes and return their number."""
    return changes.delete_before(session, before=now - older_than, limit=BATCH_SIZE)


class ChangeTimer(PruneTimer):
    """When one beat prunes its next batch of changes."""

    def advance(self, deleted: int, *, now: datetime) -> None:
        """Set when the next batch is due, after one was committed."""
        self.next_at = now + (BATCH_PAUSE if deleted == BATCH_SIZE else SCAN_INTERVAL)
