"""Changes that several processes make: end dead attempts, note failures, pause schedules.

An attempt ends when its worker is dead or executes it no longer, a canvas when it is lost.

A worker is dead when it was replaced, or has been stopped or silent for dynbeat_node_timeout.

    running, on_lost="record" (the default)                     -> lost
    running, on_lost="rerun" (an idempotent task)               -> pending, sent again
    running, the broker redelivered the message                 -> pending, sent again
    the last two, at the MAX_ATTEMPTS-th attempt                -> lost: it may kill its workers
    running, a newer run was to replace it                      -> revoked
    retrying: replaced by a canvas that has not ended           -> lost: tasks of it may still run

An attempt that its task has postponed does not count.

Beat calls this for the runs of dead nodes (``beat.maintenance``). A living worker calls it for runs
that it does not execute (``worker.pool_check``).

A worker that was only slow records the end of its attempt later, over ``lost``. The guard prevents
a second start: a redelivered message finds its run started or ended.

A worker keeps ``failing_since`` of a schedule up to date for a failed run. Beat does so for all
other runs, and for schedules that were locked, because no process waits for a schedule that an
application has locked. ``store.failing`` lists the cases.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Row
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import KEPT_ORIGINS, Status
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.store import runs
from celery_dynbeat.store.runs import unfinished
from celery_dynbeat.store.runs.unfinished import REPLACED
from celery_dynbeat.store.schedules import failing
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
    is_active = bool(row.enabled) or row.origin in KEPT_ORIGINS
    allowed = row.attempt - row.postponements < MAX_ATTEMPTS and is_active
    redelivered = row.redelivered_attempt == row.attempt
    may_run_again = redelivered or (row.on_lost or settings.on_lost) == "rerun"
    return allowed and may_run_again and row.status == Status.RUNNING


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


#: Ended runs whose schedules one call corrects, in one transaction that locks the schedules.
MAX_DEFERRED = 20


def note_failure(database: Database, *, run_id: str, at: datetime) -> None:
    """Correct ``failing_since`` of the schedule whose run has failed.

    Call it after the commit of the end. For a schedule that fails already, this is one read.
    """
    schedule_id = database.read(partial(failing.unaware_schedule_of, run_id=run_id))
    if schedule_id is not None and _refresh(database, [schedule_id]).locked:
        # Beat tries again.
        database.run_autocommit(partial(failing.defer, run_id=run_id, until=at))


class Settled(NamedTuple):
    """The number of ended runs whose schedules were corrected, or are tried again.

    ``refused`` are the runs whose change the database refuses.
    """

    corrected: int
    refused: Mapping[failing.DeferredEnd, DBAPIError]


def settle_deferred(
    database: Database,
    *,
    now: datetime,
    retry_after: timedelta,
    since: datetime | None = None,
    except_ids: Collection[str] = (),
) -> Settled:
    """Correct the schedules of up to MAX_DEFERRED ended runs, except ``except_ids``.

    With ``since``, only ends that were deferred to a later instant count. A schedule that is still
    locked, or whose change the database refuses, is tried again after ``retry_after``.
    """
    read = partial(
        failing.deferred, now=now, limit=MAX_DEFERRED, since=since, except_ids=except_ids
    )
    ends = database.read_in_transaction(read)
    # The schedule of a run may have been deleted.
    schedule_ids = {end.schedule_id for end in ends if end.schedule_id is not None}
    locked = _refresh(database, sorted(schedule_ids)).locked
    again = [end for end in ends if end.schedule_id in locked]
    done = [end for end in ends if end.schedule_id not in locked]
    until = now + retry_after
    _, refused = database.run_in_parts(partial(failing.set_corrected, until=until), again)
    _, others = database.run_in_parts(failing.set_corrected, done)
    refused |= others
    return Settled(len(ends) - len(refused), refused)


def _refresh(database: Database, schedule_ids: Sequence[int]) -> failing.Refreshed:
    """Set ``failing_since`` of schedules from their history.

    A schedule whose change the database refuses counts as locked.
    """
    results, refused = database.run_in_parts(failing.refresh, schedule_ids, in_transaction=True)
    refreshed = failing.Refreshed(
        [each for result in results for each in result.recovered],
        {each for result in results for each in result.locked} | refused.keys(),
    )
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
