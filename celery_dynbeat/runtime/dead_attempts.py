"""Runs that nobody would end: their worker is gone, or the message of their retry is.

Gone is a worker that was killed, replaced, or silent for dynbeat_node_timeout.

    running, its node is gone, on_lost="record" (the default)         -> lost
    running, its node is gone, on_lost="rerun" (an idempotent task)    -> pending, sent once more
    running, its node is gone, the broker delivered its message again  -> pending, sent once more
    the same, for the MOST_ATTEMPTS-th time: it may be what kills them -> lost
    running, its node is gone, a newer run was to replace it           -> revoked
    retrying, not begun dynbeat_resend_after past its time             -> pending, sent once more

The same becomes of a run whose node lives and does not execute it: that node says so itself
(``worker.pool_check``).

A worker that was only slow and comes back records how its attempt ended, over ``lost``. Against a
second start stands the guard: what the broker delivers again finds the run started or ended.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row
from sqlalchemy.orm import Session

from celery_dynbeat.common.events import Event
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.models import Origin
from celery_dynbeat.store import stuck_runs
from celery_dynbeat.store.overlaps import REPLACED
from celery_dynbeat.store.rows import LockedRows

logger = logging.getLogger(__name__)

#: A run that took as many workers with it is not sent again.
MOST_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class EndedAttempts:
    """What became of a batch of runs whose attempt is dead.

    ``limits`` holds the schedules that may have to be paused, each with the number of failures in
    a row that its policy allows.
    """

    number: int
    rerun: int
    limits: Mapping[int, int]


def end_attempts(
    session: Session, found: LockedRows, *, now: datetime, settings: Settings, reason: str
) -> EndedAttempts:
    """Record what becomes of locked runs whose attempt is dead; ``reason`` says why it is."""
    for damage in found.unreadable:
        stuck_runs.end_lost(session, [damage.id], status=Status.LOST, now=now, error=str(damage))
    cancelled = [row for row in found.rows if row.cancelled_at is not None]
    others = [row for row in found.rows if row.cancelled_at is None]
    again = [row for row in others if _is_rerun(row, settings)]
    lost = [row for row in others if not _is_rerun(row, settings)]
    stuck_runs.end_lost(session, _ids(cancelled), status=Status.REVOKED, now=now, error=REPLACED)
    stuck_runs.rerun(session, _ids(again), now=now, error=reason)
    stuck_runs.end_lost(session, _ids(lost), status=Status.LOST, now=now, error=reason)
    for fate, theirs in (("revoked", cancelled), ("sent again", again), ("lost", lost)):
        for row in theirs:
            logger.warning(
                "run %s is %s: %s (worker %s)",
                row.id,
                fate,
                reason,
                row.worker,
                extra={"event": Event.RUN_LOST, "run_id": row.id},
            )
    number = len(found.rows) + len(found.unreadable)
    return EndedAttempts(number, len(again), _limits(lost, settings))


def _ids(rows: list[Row[Any]]) -> list[str]:
    return [row.id for row in rows]


def _limits(lost: list[Row[Any]], settings: Settings) -> dict[int, int]:
    # The schedule of a run may be deleted by now.
    limits = {row.schedule_id: row.pause_after_failures for row in lost if row.schedule_id}
    default = settings.pause_after_failures
    asked = {key: default if limit is None else limit for key, limit in limits.items()}
    return {key: limit for key, limit in sorted(asked.items()) if limit}


def _is_rerun(row: Row[Any], settings: Settings) -> bool:
    # A pause and a delete win against a new attempt, as they do against the first.
    allowed = row.attempt < MOST_ATTEMPTS and (bool(row.enabled) or row.origin == Origin.MANUAL)
    redelivered = row.redelivered_attempt == row.attempt
    return allowed and (redelivered or (row.on_lost or settings.on_lost) == "rerun")
