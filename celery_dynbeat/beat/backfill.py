"""Make runs for past fire times: one batch of one backfill in each transaction.

    due backfill -> capacity? -> next fire times -> record runs where none exist -> publish
                    none: due again after the poll interval

- At most ``batch_size`` runs of a schedule's backfills are unfinished, so that they do not flood
  the queue. If the overlap policy is not ``allow``, one run is made at a time, and only while the
  schedule has no unfinished run.
- A run counts as unfinished until it ends or has run for max_run_time, as for overlap.
- Fire times from the schedule's next fire time on are left to the claim.
- The backfill of a paused, held or quarantined schedule waits. So does one whose trigger this
  version does not support.
- A trigger that cannot be evaluated and a schedule that cannot be read are quarantined. A backfill
  that cannot be read is cancelled.
- A crash leaves what a crash of a claim leaves: nothing, or pending runs that the sweep publishes.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from celery_dynbeat.beat.claim import skipped_of
from celery_dynbeat.beat.quarantine import quarantine_of, quarantine_unreadable
from celery_dynbeat.common import task_allowlist
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.models import Backfill, Origin, Schedule
from celery_dynbeat.planning.backfill_planning import (
    SkippedRemainder,
    fire_times,
    remainder_of,
    select_missing,
)
from celery_dynbeat.planning.outgoing_run import OutgoingRun
from celery_dynbeat.planning.plan import MICROSECOND, Skip
from celery_dynbeat.planning.schedule_spec import (
    ScheduleSpec,
    spec_from_row,
    with_search_budget,
)
from celery_dynbeat.store import backfills, holds, run_rows, runs, skips
from celery_dynbeat.store.rows import names_of
from celery_dynbeat.telemetry.emitting import emit_on_commit
from celery_dynbeat.triggers import is_known
from celery_dynbeat.triggers.search_budget import PLAN_STEPS

logger = logging.getLogger(__name__)

#: The time between two batches of one backfill.
BATCH_PAUSE = timedelta(seconds=1)


class Backfilled(NamedTuple):
    """The number of backfills that were handled, and the new runs to publish."""

    handled: int
    outgoing: Sequence[OutgoingRun]


@dataclass(frozen=True, slots=True)
class _Batch:
    """The fire times that become runs.

    ``remainders`` is what the skipped rows that covered them still cover, by row id.
    """

    missing: Sequence[datetime]
    remainders: Mapping[str, SkippedRemainder]


def run_due_backfill(session: Session, *, now: datetime, settings: Settings) -> Backfilled:
    """Make the next batch of the backfill that has been due the longest, if any."""
    locked = backfills.lock_oldest_due(session, now=now)
    if locked is None:
        return Backfilled(backfills.delete_orphans(session, now=now), [])
    if isinstance(locked, backfills.UnreadableBackfill):
        _handle_unreadable(session, locked, now=now, settings=settings)
        return Backfilled(1, [])
    backfill, schedule = locked
    outgoing: Sequence[OutgoingRun] = []
    if _must_wait(session, schedule, now=now):
        backfill.next_run_at = now + settings.poll_interval
    else:
        try:
            outgoing = _run_batch(session, backfill, schedule, now=now, settings=settings)
        except (SQLAlchemyError, ImportError):
            raise
        # Invalid text, a removed time zone: only this schedule is affected.
        except Exception as error:  # noqa: BLE001
            quarantined = quarantine_of(schedule, error, now=now)
            emit_on_commit(session, quarantined)
            schedule.error = quarantined.error
            schedule.next_run_at = schedule.held_at = None
            backfill.next_run_at = now + settings.poll_interval
    session.flush()
    return Backfilled(1, outgoing)


def _must_wait(session: Session, schedule: Schedule, *, now: datetime) -> bool:
    if not schedule.enabled or schedule.error is not None or not is_known(schedule.trigger_kind):
        return True
    return holds.end_of(session, owner=schedule.owner, now=now) is not None


def _run_batch(
    session: Session,
    backfill: Backfill,
    schedule: Schedule,
    *,
    now: datetime,
    settings: Settings,
) -> Sequence[OutgoingRun]:
    task_allowlist.check(settings, owner=schedule.owner, task=schedule.task)
    whole = spec_from_row(schedule, settings)
    # The row is locked, so each batch searches as long as one plan of a claim at most.
    spec = with_search_budget(whole)
    capacity = _capacity(session, backfill, spec, now)
    if capacity <= 0:
        # Not BATCH_PAUSE: hundreds of waiting backfills would take all of beat's time.
        backfill.next_run_at = now + settings.poll_interval
        return []
    window = _window(backfill, schedule, spec)
    if not window:
        _wait_or_end(backfill, schedule, spec, now)
        return []
    present = backfills.fire_times_with_run(session, schedule_id=schedule.id, instants=window)
    selection = select_missing(window, present=present, capacity=capacity)
    remainders = _remainders(session, schedule, whole, selection.missing)
    batch = _Batch(selection.missing, remainders)
    outgoing = _record(session, schedule, batch, now=now, settings=settings)
    backfill.made += len(outgoing)
    backfill.present += len(selection.done) - len(outgoing)
    _advance(backfill, spec, selection.done[-1], now=now, made=bool(outgoing))
    return outgoing


def _capacity(session: Session, backfill: Backfill, spec: ScheduleSpec, now: datetime) -> int:
    """Return how many runs may be made now."""
    is_exclusive = spec.overlap != "allow"
    limit = 1 if is_exclusive else backfill.batch_size
    unfinished = backfills.count_unfinished_runs(
        session,
        schedule_id=backfill.schedule_id,
        started_after=now - spec.max_run_time,
        origin=None if is_exclusive else Origin.BACKFILL,
        limit=limit,
    )
    return limit - unfinished


def _window(backfill: Backfill, schedule: Schedule, spec: ScheduleSpec) -> list[datetime]:
    """Return the fire times of the next batch.

    All batches together have at most ``total`` fire times, as counted when the backfill was made.
    """
    if backfill.next_fire_at is None:
        return []
    left = backfill.total - backfill.made - backfill.present
    end = backfill.end_at
    if schedule.next_fire_at is not None and schedule.finished_at is None:
        end = min(end, schedule.next_fire_at - MICROSECOND)
    limit = min(backfill.batch_size, left)
    return fire_times(spec, start=backfill.next_fire_at, end=end, limit=limit)


def _remainders(
    session: Session, schedule: Schedule, spec: ScheduleSpec, missing: Sequence[datetime]
) -> Mapping[str, SkippedRemainder]:
    """Return what the skipped rows that cover ``missing`` still cover without them, by id.

    A fire time can only be covered by the next row of history after it. A row for which that is too
    costly to tell keeps its count.
    """
    # A count takes half of it, which suffices for COUNT_LIMIT fire times.
    trigger = with_search_budget(spec, steps=2 * PLAN_STEPS // 3).trigger
    remainders: dict[str, SkippedRemainder] = {}
    left = missing
    while left:
        row = backfills.first_run_from(session, schedule_id=schedule.id, instant=left[0])
        if row is None:
            break
        removed = [at for at in left if at <= row.scheduled_for]
        left = left[len(removed) :]
        if row.status != Status.SKIPPED:
            continue
        by_call = _skipped_by_call(session, schedule, first=removed[0], last=row.scheduled_for)
        try:
            remainder = remainder_of(trigger, row, removed, by_call=by_call)
        except InvalidTriggerError:
            break
        if remainder is not None:
            remainders[row.id] = remainder
    return remainders


def _skipped_by_call(
    session: Session, schedule: Schedule, *, first: datetime, last: datetime
) -> Sequence[datetime]:
    """Return the fire times that skip() took out. A backfill runs them like other skipped ones."""
    if schedule.skipped_until is None or schedule.skipped_until < first:
        return ()
    return skips.in_span(session, schedule_id=schedule.id, first=first, last=last)


def _record(
    session: Session,
    schedule: Schedule,
    batch: _Batch,
    *,
    now: datetime,
    settings: Settings,
) -> Sequence[OutgoingRun]:
    if schedule.skipped_until is not None:
        skips.remove(session, schedule_id=schedule.id, instants=batch.missing)
    for run_id, remainder in batch.remainders.items():
        backfills.shrink_skipped(session, run_id=run_id, fire_count=remainder.newer)
    new = [
        run_rows.new_outgoing_run(schedule, at, now=now, settings=settings, origin=Origin.BACKFILL)
        for at in batch.missing
    ]
    overdue_at = now + settings.dispatch_timeout
    pending = [run_rows.pending_row(run, now=now, overdue_at=overdue_at) for run in new]
    added = runs.add(session, pending)
    for remainder in batch.remainders.values():
        if remainder.older is not None:
            _add_skipped(session, schedule, remainder.older, now)
    return [run for run in new if run.run_id in added]


def _add_skipped(session: Session, schedule: Schedule, skip: Skip, now: datetime) -> None:
    record = run_rows.skipped_row(schedule, skip, now=now)
    # The instant may have a row if the count came from another trigger. The count must be recorded
    # in any case.
    while not runs.add(session, [record]):
        record["scheduled_for"] -= MICROSECOND
    emit_on_commit(session, *skipped_of([record]))


def _advance(
    backfill: Backfill, spec: ScheduleSpec, last: datetime, *, now: datetime, made: bool
) -> None:
    following = fire_times(spec, start=last + MICROSECOND, end=backfill.end_at, limit=1)
    if not following or backfill.made + backfill.present >= backfill.total:
        _end(backfill, now)
        return
    backfill.next_fire_at = following[0]
    # If all fire times had runs, no run was made: continue without a pause.
    backfill.next_run_at = now + BATCH_PAUSE if made else now


def _wait_or_end(backfill: Backfill, schedule: Schedule, spec: ScheduleSpec, now: datetime) -> None:
    start = backfill.next_fire_at
    if start is None or not fire_times(spec, start=start, end=backfill.end_at, limit=1):
        _end(backfill, now)
    else:
        # The claim decides about the remaining fire times as soon as they are due.
        backfill.next_run_at = max(now + BATCH_PAUSE, schedule.next_run_at or now)


def _end(backfill: Backfill, now: datetime) -> None:
    backfill.next_fire_at = backfill.next_run_at = None
    backfill.finished_at = now


def _handle_unreadable(
    session: Session, unreadable: backfills.UnreadableBackfill, *, now: datetime, settings: Settings
) -> None:
    """Quarantine the schedule or cancel the backfill, whichever cannot be read.

    The backfill of a quarantined schedule continues when the schedule is repaired.
    """
    if unreadable.schedule is not None:
        quarantine_unreadable(session, [unreadable.schedule], now=now)
    if unreadable.backfill is None:
        until = now + settings.poll_interval
        backfills.defer(session, backfill_id=unreadable.backfill_id, until=until)
        return
    names = names_of(session, Schedule, [unreadable.schedule_id])[unreadable.schedule_id]
    logger.error(
        "backfill %s cannot be read and is cancelled: %s",
        unreadable.backfill_id,
        unreadable.backfill,
        extra={
            "event": Event.BACKFILL_CANCELLED,
            "owner": names.owner,
            "schedule": names.name,
            "backfill_id": unreadable.backfill_id,
        },
    )
    backfills.cancel_unread(session, backfill_id=unreadable.backfill_id, now=now)
