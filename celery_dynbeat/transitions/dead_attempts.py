"""Record the end of attempts whose worker is dead or executes them no longer, and of lost canvases.

A worker is dead when it was replaced, or has been stopped or silent for dynbeat_node_timeout.

    running, on_lost="record" (the default)                     -> lost
    running, on_lost="rerun" (an idempotent task)               -> pending, sent again
    running, the broker redelivered the message                 -> pending, sent again
    the last two, at the MAX_ATTEMPTS-th attempt                -> lost: it may kill its workers
    running, a newer run was to replace it                      -> revoked
    retrying: replaced by a canvas that has not ended           -> lost: tasks of it may still run

Beat calls this for the runs of dead nodes (``beat.maintenance``). A living worker calls it for runs
that it does not execute (``worker.pool_check``).

A worker that was only slow records the end of its attempt later, over ``lost``. The guard prevents
a second start: a redelivered message finds its run started or ended.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row
from sqlalchemy.orm import Session

from celery_dynbeat.common.run_states import Status
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.models import REQUESTED_ORIGINS
from celery_dynbeat.store import stuck_runs
from celery_dynbeat.store.overlaps import REPLACED
from celery_dynbeat.store.rows import LockedRows
from celery_dynbeat.telemetry import events
from celery_dynbeat.telemetry.emitting import emit_on_commit

#: After as many attempts the run is not sent again.
MAX_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class EndedAttempts:
    """The ended attempts of one batch: their number, and how many of their runs are sent again."""

    count: int
    rerun_count: int


def end_attempts(
    session: Session, locked: LockedRows, *, now: datetime, settings: Settings, reason: str
) -> EndedAttempts:
    """End the attempts of locked runs, and record ``reason`` with each of them."""
    for row in locked.unreadable:
        stuck_runs.end_lost(session, [row.id], status=Status.LOST, now=now, error=str(row))
    replaced = [row for row in locked.rows if row.cancelled_at is not None]
    others = [row for row in locked.rows if row.cancelled_at is None]
    rerun = [row for row in others if _is_rerun(row, settings)]
    lost = [row for row in others if not _is_rerun(row, settings)]
    stuck_runs.end_lost(session, _ids(replaced), status=Status.REVOKED, now=now, error=REPLACED)
    stuck_runs.rerun(session, _ids(rerun), now=now, error=reason)
    stuck_runs.end_lost(session, _ids(lost), status=Status.LOST, now=now, error=reason)
    emit_on_commit(
        session,
        *(_event(events.ReplacedRunLost, row, reason=reason, at=now) for row in replaced),
        *(_event(events.RunLost, row, reason=reason, at=now, sent_again=True) for row in rerun),
        *(_event(events.RunLost, row, reason=reason, at=now) for row in lost),
    )
    return EndedAttempts(len(locked.rows) + len(locked.unreadable), len(rerun))


def _event(
    event_type: type[events.RunLost],
    row: Row[Any],
    *,
    reason: str,
    at: datetime,
    sent_again: bool = False,
) -> events.RunLost:
    return event_type(
        run_id=row.id,
        schedule_id=row.schedule_id,
        owner=row.owner,
        schedule=row.name,
        task=row.task,
        attempt=row.attempt,
        worker=row.worker,
        reason=reason,
        sent_again=sent_again,
        at=at,
    )


def _ids(rows: list[Row[Any]]) -> list[str]:
    return [row.id for row in rows]


def _is_rerun(row: Row[Any], settings: Settings) -> bool:
    # A pause or a delete prevents a new attempt, as it prevents the first.
    is_active = bool(row.enabled) or row.origin in REQUESTED_ORIGINS
    allowed = row.attempt < MAX_ATTEMPTS and is_active
    redelivered = row.redelivered_attempt == row.attempt
    may_run_again = redelivered or (row.on_lost or settings.on_lost) == "rerun"
    return allowed and may_run_again and row.status == Status.RUNNING
