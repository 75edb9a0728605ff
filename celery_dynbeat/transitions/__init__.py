"""Changes that several processes make: end dead attempts, note failures, pause schedules.

An attempt ends when its worker is dead or executes it no longer, a canvas when it is lost.

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

A worker keeps ``failing_since`` of a schedule up to date for a failed run. Beat does so for all
other runs, and for schedules that were locked, because no process waits for a schedule that an
application has locked. ``store.failing`` lists the cases.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import Row
from sqlalchemy.orm import Session

from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import Action, Status
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.models import REQUESTED_ORIGINS, Schedule
from celery_dynbeat.db.statements import RowLockedError
from celery_dynbeat.store import runs, schedules
from celery_dynbeat.store.runs import unfinished
from celery_dynbeat.store.runs.unfinished import REPLACED
from celery_dynbeat.store.schedules import changes, failing
from celery_dynbeat.telemetry import emit, emit_on_commit, events, has_listeners

#: After this many attempts, the run is not sent again.
MAX_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class EndedAttempts:
    """The ended attempts of one batch: their number, and how many of their runs are sent again."""

    count: int
    rerun_count: int


def end_attempts(
    session: Session, rows: Sequence[Row[Any]], *, now: datetime, settings: Settings, reason: str
) -> EndedAttempts:
    """End the attempts of locked runs, and record ``reason`` with each of them."""
    replaced = [row for row in rows if row.cancelled_at is not None]
    others = [row for row in rows if row.cancelled_at is None]
    rerun = [row for row in others if _is_rerun(row, settings)]
    lost = [row for row in others if not _is_rerun(row, settings)]
    unfinished.end_lost(session, _ids(replaced), status=Status.REVOKED, now=now, error=REPLACED)
    unfinished.rerun(session, _ids(rerun), now=now, error=reason)
    unfinished.end_lost(session, _ids(lost), status=Status.LOST, now=now, error=reason)
    emit_on_commit(
        session,
        *(_event(events.ReplacedRunLost, row, reason=reason, at=now) for row in replaced),
        *(_event(events.RunLost, row, reason=reason, at=now, sent_again=True) for row in rerun),
        *(_event(events.RunLost, row, reason=reason, at=now) for row in lost),
    )
    return EndedAttempts(len(rows), len(rerun))


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


#: The actor of this pause in the audit.
ACTOR = "dynbeat"
#: Characters of a reason in the audit.
REASON_LENGTH = 1024


def pause(
    session: Session,
    row: Schedule,
    *,
    reason: str,
    now: datetime,
    until: datetime | None = None,
) -> None:
    """Pause a locked schedule and revoke its runs that have not started, except requested ones.

    ``next_fire_at`` stays unchanged, so that a resume records the fire times missed since then.
    Beat resumes the schedule at ``until``. None means that only a call resumes it.
    """
    row.enabled, row.paused_reason, row.paused_until = False, reason, until
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
    recorded as a change. Call it in a separate transaction, because it locks the schedule, and a
    schedule is locked before its runs. Raises RowLockedError if another transaction has locked the
    schedule or one of its unfinished runs.
    """
    row = schedules.lock_id(session, schedule_id=schedule_id, waits=False)
    # A quarantine has stopped the schedule already.
    if row is None or not row.enabled or row.error is not None:
        return False
    # Later than ``now`` if the clock was set back.
    until = now if row.last_run_at is None else max(now, row.last_run_at)
    ends = unfinished.latest_outcomes(session, schedule_id=schedule_id, until=until, limit=limit)
    failures = [
        end for end in ends if end.status != Status.SUCCEEDED and end.finished_at > row.updated_at
    ]
    if len(failures) < limit:
        return False
    if unfinished.with_locked_runs(session, [schedule_id]):
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
    """Report a pause with the commit. ``failures`` is the number of failures that caused it."""
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


#: Ended runs whose schedules one call corrects, in one transaction that locks the schedules.
MAX_DEFERRED = 20


def note_failure(database: Database, *, run_id: str, at: datetime, settings: Settings) -> None:
    """Correct ``failing_since`` of the schedule whose run has failed, and pause it if it must be.

    Call it after the commit of the end. For a schedule that fails already, and has no limit of
    failures, this is one read.
    """
    schedule = database.read(partial(failing.schedule_of, run_id=run_id))
    if schedule is None:
        return
    outdated = [] if schedule.failing_since is not None else [schedule.id]
    is_left = bool(_refresh(database, outdated).locked)
    if not is_left:
        try:
            _pause_if_failing(database, schedule.id, schedule.own_limit, now=at, settings=settings)
        except RowLockedError:
            is_left = True
    if is_left:
        # Beat tries again.
        database.run_autocommit(partial(failing.defer, run_id=run_id, until=at))


def settle_deferred(
    database: Database,
    *,
    now: datetime,
    settings: Settings,
    retry_after: timedelta,
    since: datetime | None = None,
) -> int:
    """Correct and pause the schedules of up to MAX_DEFERRED ended runs; return how many these are.

    With ``since``, only ends that were deferred to a later instant count. A schedule that is still
    locked is tried again after ``retry_after``.
    """
    read = partial(failing.deferred, now=now, limit=MAX_DEFERRED, since=since)
    ends = database.read_in_transaction(read)
    # The schedule of a run may have been deleted.
    schedule_ids = {end.schedule_id for end in ends if end.schedule_id is not None}
    locked = set(_refresh(database, sorted(schedule_ids)).locked)
    limits = {(end.schedule_id, end.own_limit) for end in ends if end.status != Status.SUCCEEDED}
    for schedule_id, own_limit in limits:
        if schedule_id is None or schedule_id in locked:
            continue
        try:
            _pause_if_failing(database, schedule_id, own_limit, now=now, settings=settings)
        except RowLockedError:
            locked.add(schedule_id)
    again = [end for end in ends if end.schedule_id in locked]
    done = [end for end in ends if end.schedule_id not in locked]
    until = now + retry_after
    database.run_autocommit(partial(failing.set_corrected, ends=again, until=until))
    database.run_autocommit(partial(failing.set_corrected, ends=done))
    return len(ends)


def _refresh(database: Database, schedule_ids: Sequence[int]) -> failing.Refreshed:
    """Set ``failing_since`` of schedules from their history."""
    if not schedule_ids:
        return failing.Refreshed((), set())
    refreshed = database.run(partial(failing.refresh, schedule_ids=schedule_ids))
    if has_listeners(events.ScheduleRecovered):
        for recovered in refreshed.recovered:
            emit(
                events.ScheduleRecovered(
                    schedule_id=recovered.schedule_id,
                    owner=recovered.owner,
                    schedule=recovered.name,
                    failing_since=recovered.failing_since,
                )
            )
    return refreshed


def _pause_if_failing(
    database: Database,
    schedule_id: int,
    own_limit: int | None,
    *,
    now: datetime,
    settings: Settings,
) -> None:
    limit = settings.pause_after_failures if own_limit is None else own_limit
    if not limit:
        return
    pause = partial(pause_if_failing, schedule_id=schedule_id, limit=limit, audit=settings.audit)
    database.run(partial(pause, now=now))
