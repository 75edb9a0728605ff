"""Select the past fire times that a batch of a backfill runs.

    next fire times -> those without a run -> record their runs, correct the skipped rows

- Fire times from the schedule's next fire time on are left to the claim.
- A backfill waits while another transaction has locked its schedule, and if this version does not
  support the trigger. It waits in quiet hours, unless the caller asked otherwise. A
  pause does not stop it.
- A schedule whose trigger cannot be evaluated is quarantined. The backfill continues when the
  schedule is repaired.
- All batches together have at most ``total`` fire times, as counted when the backfill was made.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from celery_dynbeat.beat.holding import quarantine_of
from celery_dynbeat.beat.request_batch import (
    BATCH_PAUSE,
    Batch,
    Recorded,
    UnusableRequestError,
    busy_schedules,
    exclusive_schedules,
    unfinished_runs,
    wait,
)
from celery_dynbeat.beat.waiting import days_of, is_quiet
from celery_dynbeat.common.errors import (
    InvalidTriggerError,
    UnknownZoneError,
    concerns_process,
)
from celery_dynbeat.common.settings import Settings, check_task_allowed
from celery_dynbeat.common.states import was_started
from celery_dynbeat.db.models import Origin
from celery_dynbeat.db.statements import Row
from celery_dynbeat.planning import (
    ScheduleSpec,
    spec_from_row,
    with_search_budget,
    with_skipped,
)
from celery_dynbeat.planning.backfill_planning import (
    SkippedRemainder,
    fire_times,
    remainder_of,
    select_missing,
)
from celery_dynbeat.planning.plan import MICROSECOND, Skip
from celery_dynbeat.store import requests, runs
from celery_dynbeat.store.schedules import calendars_of, due, run_rows
from celery_dynbeat.telemetry import emit_on_commit
from celery_dynbeat.triggers import is_known
from celery_dynbeat.triggers.base import PLAN_STEPS

#: The maximum number of fire times that skip() removed and that a search for the newest other one
#: passes.
_MAX_EARLIER_SKIPS = 100


def next_batch(session: Session, request: Row, *, now: datetime, settings: Settings) -> Batch:
    """Record the next batch of a backfill."""
    locked = due.lock_by_ids(session, [request.schedule_id])
    if not locked:
        if not due.existing_ids(session, [request.schedule_id]):
            raise UnusableRequestError("its schedule was deleted")
        return wait(now + BATCH_PAUSE)
    schedule = locked[0]
    text = None if request.ignores_quiet_hours else schedule.quiet_hours
    if is_quiet(text, days_of(session, [text]), now=now) or not is_known(schedule.trigger_kind):
        return wait(now + settings.poll_interval)
    try:
        return _run_batch(session, request, schedule, now=now, settings=settings)
    except SQLAlchemyError:
        raise
    except UnknownZoneError:
        # The tz database of a newer beat may have the zone.
        return wait(now + settings.poll_interval)
    # Invalid text: only this schedule is affected.
    except Exception as error:
        if concerns_process(error):
            raise
        if schedule.error is None:
            _quarantine(session, schedule, error, now=now)
        return wait(now + settings.poll_interval)


def _quarantine(session: Session, schedule: Row, error: Exception, *, now: datetime) -> None:
    quarantined = quarantine_of(schedule, error, now=now)
    values = {"next_run_at": None, "held_at": None, "error": quarantined.error}
    due.advance(session, [{"id": schedule.id, **values}])
    emit_on_commit(session, quarantined)


def _run_batch(
    session: Session, request: Row, schedule: Row, *, now: datetime, settings: Settings
) -> Batch:
    run_rows.check_payload(schedule)
    check_task_allowed(settings, owner=schedule.owner, task=schedule.task)
    calendars = calendars_of(session, [schedule])
    # A backfill runs the fire times that skip() took out as well.
    whole = with_skipped(spec_from_row(schedule, settings, calendars))
    # The row is locked, so a batch searches no longer than one plan of a claim.
    spec = with_search_budget(whole)
    unfinished = unfinished_runs(session, request, started_after=now - spec.max_run_time)
    capacity = request.batch_size - len(unfinished)
    if exclusive := exclusive_schedules({schedule.id: schedule}, settings):
        is_busy = busy_schedules(session, exclusive, now=now, settings=settings)
        capacity = 0 if is_busy else 1
    if capacity <= 0:
        # BATCH_PAUSE would be too short, because hundreds of waiting backfills would take all of
        # beat's time.
        return wait(now + settings.poll_interval)
    window = _window(request, schedule, spec)
    if not window:
        return _wait_or_end(request, schedule, spec, now)
    present = requests.fire_times_with_run(session, schedule_id=schedule.id, instants=window)
    selection = select_missing(window, present=present, capacity=capacity)
    recorded = _record(
        session, request, schedule, whole, selection.missing, now=now, settings=settings
    )
    created = request.created + len(recorded.run_ids)
    excluded = request.excluded + len(selection.done) - len(recorded.run_ids)
    values: dict[str, Any] = {
        "created": created,
        "excluded": excluded,
        "unfinished_ids": [*unfinished, *recorded.run_ids],
        "after_at": selection.done[-1],
        # If all fire times already had runs, no run was created. Continue without a pause.
        "next_run_at": now + BATCH_PAUSE if recorded.run_ids else now,
    }
    is_last = created + excluded >= request.total or not fire_times(
        spec, after=selection.done[-1], until=request.until, limit=1
    )
    return Batch(recorded.outgoing, values | _ended(now) if is_last else values)


def _window(request: Row, schedule: Row, spec: ScheduleSpec) -> list[datetime]:
    """Return the fire times of the next batch."""
    until = request.until
    if schedule.next_fire_at is not None and schedule.finished_at is None:
        until = min(until, schedule.next_fire_at)
    left = request.total - request.created - request.excluded
    limit = min(request.batch_size, left)
    return fire_times(spec, after=request.after_at, until=until, limit=limit)


def _wait_or_end(request: Row, schedule: Row, spec: ScheduleSpec, now: datetime) -> Batch:
    if not fire_times(spec, after=request.after_at, until=request.until, limit=1):
        return Batch((), _ended(now))
    # The claim decides about the remaining fire times as soon as they are due.
    return wait(max(now + BATCH_PAUSE, schedule.next_run_at or now))


def _ended(now: datetime) -> dict[str, Any]:
    return {"next_run_at": None, "finished_at": now}


def _record(
    session: Session,
    request: Row,
    schedule: Row,
    spec: ScheduleSpec,
    missing: Sequence[datetime],
    *,
    now: datetime,
    settings: Settings,
) -> Recorded:
    remainders = _remainders(session, schedule, spec, missing)
    requests.remove_skipped_by_call(session, schedule_id=schedule.id, instants=missing)
    for run_id, remainder in remainders.items():
        requests.shrink_skipped(session, run_id=run_id, fire_count=remainder.newer)
    new = [
        run_rows.new_outgoing_run(schedule, at, now=now, settings=settings, origin=Origin.BACKFILL)
        for at in missing
    ]
    overdue_at = now + settings.dispatch_timeout
    pending = [
        {
            **run_rows.pending_row(run, now=now, overdue_at=overdue_at),
            "request_id": request.id,
            "ignores_quiet_hours": request.ignores_quiet_hours,
        }
        for run in new
    ]
    added, waiting = run_rows.add_runs(session, pending, settings=settings)
    for remainder in remainders.values():
        if remainder.older is not None:
            _add_skipped(session, schedule, remainder.older, now)
    run_ids = [run.run_id for run in new if run.run_id in added]
    return Recorded(run_ids, [run for run in new if run.run_id in added - waiting])


def _remainders(
    session: Session, schedule: Row, spec: ScheduleSpec, missing: Sequence[datetime]
) -> Mapping[str, SkippedRemainder]:
    """Return what the skipped rows that cover ``missing`` still cover without them, by id.

    A fire time can only be covered by the next row of history after it. A row keeps its count if
    this is too costly to compute.
    """
    # A count takes half of the budget, which suffices for COUNT_LIMIT fire times.
    trigger = with_search_budget(spec, steps=2 * PLAN_STEPS // 3).trigger
    remainders: dict[str, SkippedRemainder] = {}
    left = missing
    while left:
        row = requests.first_run_from(session, schedule_id=schedule.id, instant=left[0])
        if row is None:
            break
        removed = [at for at in left if at <= row.scheduled_for]
        left = left[len(removed) :]
        if was_started(row.status, row.attempt):
            continue
        by_call = requests.skipped_by_call(
            session,
            schedule_id=schedule.id,
            first=removed[0],
            last=row.scheduled_for,
            limit=_MAX_EARLIER_SKIPS,
        )
        # The anchor is set with the trigger. An imported schedule carries an earlier one.
        is_of_trigger = schedule.anchor_at is None or row.created_at > schedule.anchor_at
        try:
            remainder = remainder_of(
                trigger, row, removed, by_call=by_call, is_of_trigger=is_of_trigger
            )
        except InvalidTriggerError:
            break
        if remainder is not None:
            remainders[row.id] = remainder
    return remainders


def _add_skipped(session: Session, schedule: Row, skip: Skip, now: datetime) -> None:
    record = run_rows.skipped_row(schedule, skip, now=now)
    # The instant may already have a row if the count came from another trigger. The count must
    # still be recorded.
    while not runs.add(session, [record]):
        record["scheduled_for"] -= MICROSECOND
