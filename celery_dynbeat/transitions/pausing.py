"""Pause a schedule: by a call of the API, or because its runs fail."""

from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.common.actions import Action
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.store import changes, overlaps, runs, schedules, stuck_runs
from celery_dynbeat.store.rows import RowLockedError
from celery_dynbeat.telemetry import events
from celery_dynbeat.telemetry.emitting import emit_on_commit, has_listeners

#: The actor of this pause in the audit.
ACTOR = "dynbeat"
#: Characters of a reason in the audit.
REASON_LENGTH = 1024


def pause(session: Session, row: Schedule, *, reason: str, now: datetime) -> None:
    """Pause a locked schedule and revoke its runs that have not started, except requested ones.

    ``next_fire_at`` stays unchanged: a resume records the fire times missed since then.
    """
    row.enabled, row.paused_reason = False, reason
    row.next_run_at = row.held_at = None
    row.version += 1
    row.updated_at = now
    session.flush()
    runs.revoke_unstarted(
        session,
        schedule_ids=[row.id],
        now=now,
        reason="the schedule was paused",
        keep_requested=True,
    )


def pause_if_failing(
    session: Session, *, schedule_id: int, limit: int, now: datetime, audit: bool
) -> bool:
    """Pause a schedule whose last ``limit`` runs all failed or were lost; return whether it did.

    Runs that ended before the last edit or resume do not count. With ``audit`` the pause is
    recorded as a change. Call it in its own transaction: it locks the schedule, and a schedule is
    locked before its runs. Raises RowLockedError if another transaction has locked the schedule or
    one of its unfinished runs.
    """
    row = schedules.lock_id(session, schedule_id=schedule_id, waits=False)
    # A quarantine has stopped the schedule already.
    if row is None or not row.enabled or row.error is not None:
        return False
    # Later than ``now`` if the clock was set back.
    until = now if row.last_run_at is None else max(now, row.last_run_at)
    ends = stuck_runs.latest_outcomes(session, schedule_id=schedule_id, until=until, limit=limit)
    failures = [
        end for end in ends if end.status != Status.SUCCEEDED and end.finished_at > row.updated_at
    ]
    if len(failures) < limit:
        return False
    if overlaps.with_locked_runs(session, [schedule_id]):
        raise RowLockedError
    reason = f"{limit} failures in a row; the last: {failures[0].error}"
    pause(session, row, reason=reason, now=now)
    emit_paused(session, row, actor=ACTOR, reason=reason, now=now, failures=limit)
    if audit:
        changes.add(session, [_change(row, now=now)])
    return True


def emit_paused(
    session: Session,
    row: Schedule,
    *,
    actor: str,
    reason: str,
    now: datetime,
    failures: int | None = None,
) -> None:
    """Report a pause with the commit. ``failures``: how many runs in a row were its cause."""
    if has_listeners(events.SchedulePaused):
        event = events.SchedulePaused(
            schedule_id=row.id,
            owner=row.owner,
            schedule=row.name,
            task=row.task,
            actor=actor,
            reason=reason,
            automatic=failures is not None,
            failures=failures,
            at=now,
        )
        emit_on_commit(session, event)


def _change(row: Schedule, *, now: datetime) -> dict[str, Any]:
    """Return the row of the audit for the pause of an enabled schedule."""
    return {
        "changed_at": now,
        "owner": row.owner,
        "name": row.name,
        "action": Action.PAUSE,
        "actor": ACTOR,
        "reason": (row.paused_reason or "")[:REASON_LENGTH],
        "old_values": {"enabled": True, "version": row.version - 1},
        "new_values": {
            "enabled": False,
            "paused_reason": row.paused_reason,
            "version": row.version,
        },
    }
