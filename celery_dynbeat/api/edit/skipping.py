"""Skip single fire times of a schedule, and restore them.

    skip      insert the row of history of the fire time; plan without it
    unskip    delete that row; plan with the fire time again

The row exists from the call on. Its unique key already keeps every beat from starting the fire
time. ``skipped_until`` makes the plans read these rows: the next fire time, ``catch_up``,
``overlap``, ``max_runs`` and the counts of missed fire times are then correct.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from celery_dynbeat.api import acting
from celery_dynbeat.api.checks import TEXT_LENGTH, invalid
from celery_dynbeat.api.columns import ScheduleRow
from celery_dynbeat.api.edit import timing
from celery_dynbeat.common.errors import InvalidScheduleError, InvalidTriggerError
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.planning import ScheduleSpec, spec_from_row, with_search_budget, without
from celery_dynbeat.planning.plan import MICROSECOND, Skip, next_fire, too_near
from celery_dynbeat.process.context import Context, naming_schedule
from celery_dynbeat.store import runs, schedules
from celery_dynbeat.store.runs import skips
from celery_dynbeat.store.schedules import run_rows
from celery_dynbeat.triggers.base import PLAN_STEPS

#: Skipped fire times of a schedule that have not passed. Each can cost beat a search in each plan.
MAX_SKIPPED = 100
#: Skipped fire times that an error names.
_MAX_NAMED = 3


def skip(
    context: Context,
    session: Session,
    row: Schedule,
    fire_at: datetime,
    *,
    now: datetime,
) -> bool:
    """Take a fire time out of a locked row. Return False if it was already removed.

    Raises InvalidScheduleError and InvalidTriggerError.
    """
    if row.finished_at is not None:
        rule = f"the schedule finished at {row.finished_at} and has no more fire times"
        raise invalid("fire_time", fire_at, rule)
    _check_is_future(fire_at, now)
    earlier = skips.of_rows(session, [row], now=now).get(row.id, ())
    if fire_at in earlier:
        return False
    calendars = schedules.calendars_of(session, [row])
    with naming_schedule(row):
        spec = spec_from_row(row, context.settings, calendars)
        _check_is_fire_time(spec, fire_at, now=now)
    _check_number(spec, sorted({fire_at, *(at for at in earlier if at > now)}))
    try:
        with naming_schedule(row):
            near = _leave_out(session, row, spec, fire_at, earlier, now=now)
        record = run_rows.row_of_skip(row, fire_at, now=now, reason=_text())
        added = runs.add(session, [record])
    except Exception:
        # A caller that catches the error and commits must not write half of the edit.
        session.expire(row)
        raise
    if not added:
        session.expire(row)
        rule = "the schedule already has a run for this fire time; see runs()"
        raise invalid("fire_time", fire_at, rule)
    if near is not None:
        runs.add(session, [run_rows.skipped_row(row, near, now=now)])
    return True


def unskip(
    context: Context, session: Session, row: Schedule, fire_at: datetime, *, now: datetime
) -> None:
    """Put a skipped fire time back into a locked row.

    Raises InvalidScheduleError and InvalidTriggerError.
    """
    _check_is_future(fire_at, now)
    skipped = skips.of_rows(session, [row], now=now).get(row.id, ())
    if fire_at not in skipped:
        raise _not_skipped(fire_at, skipped, now=now)
    others = {*skipped} - {fire_at}
    calendars = schedules.calendars_of(session, [row])
    try:
        row.skipped_until = _skipped_until(row, others, now=now)
        with naming_schedule(row):
            spec = without(spec_from_row(row, context.settings, calendars), others)
            _check_was_not_passed(row, spec, fire_at)
            if _is_next(row, spec, fire_at, now=now):
                timing.move_to(session, row, spec, fire_at, now=now)
    except Exception:
        session.expire(row)
        raise
    skips.remove(session, schedule_id=row.id, instants=[fire_at])


def drop_invalid(context: Context, session: Session, row: ScheduleRow, *, now: datetime) -> None:
    """Remove future skips at instants that are not fire times of a locked row after its edit.

    Raises InvalidScheduleError if the plans of the row are too costly with the remaining skips.
    """
    # The edit can still be refused. Its caller may commit, so the row must not be flushed.
    with session.no_autoflush:
        skipped = skips.of_rows(session, [row], now=now).get(row.id, ())
    future = sorted(at for at in skipped if at > now)
    if not future:
        return
    with session.no_autoflush:
        calendars = schedules.calendars_of(session, [row])
    with naming_schedule(row):
        whole = spec_from_row(row, context.settings, calendars)
        spec = with_search_budget(whole)
        kept = [at for at in future if _is_fire_time(spec, at)]
    _check_number(whole, kept)
    skips.remove(session, schedule_id=row.id, instants={*future} - {*kept})
    row.skipped_until = _skipped_until(row, {*skipped} - {*future} | {*kept}, now=now)


def _skipped_until(row: ScheduleRow, skipped: Collection[datetime], *, now: datetime) -> datetime:
    """Return the instant after which the row has no skipped fire time.

    ``skipped`` does not contain those that have passed. They count again if the clock is set back.
    """
    passed = now if row.skipped_until is None else min(row.skipped_until, now)
    return max(passed, *skipped) if skipped else passed


def _check_is_future(fire_at: datetime, now: datetime) -> None:
    if fire_at <= now:
        rule = f"has passed or is due (it is {now} now): you can only change a future fire time"
        raise invalid("fire_time", fire_at, rule)


def _is_fire_time(spec: ScheduleSpec, instant: datetime) -> bool:
    """Return whether the trigger yields ``instant`` within ``start_at`` and ``end_at``."""
    if spec.start_at is not None and instant < spec.start_at:
        return False
    return next_fire(spec, instant - MICROSECOND) == instant


def _check_is_fire_time(spec: ScheduleSpec, instant: datetime, *, now: datetime) -> None:
    """Raise InvalidScheduleError with the nearest fire times if ``instant`` is not one."""
    spec = with_search_budget(spec)
    if _is_fire_time(spec, instant):
        return
    first = now if spec.start_at is None else max(now, spec.start_at - MICROSECOND)
    last = instant if spec.end_at is None else min(instant, spec.end_at)
    before = spec.trigger.latest_until(after=first, until=last) if first < last else None
    after = next_fire(spec, max(first, instant))
    near = " and ".join(str(at) for at in (before, after) if at is not None)
    rule = f"the nearest are {near}" if near else "it has no fire time in the future"
    raise invalid("fire_time", instant, f"is not a fire time of the schedule: {rule}")


def _check_number(spec: ScheduleSpec, skipped: Sequence[datetime]) -> None:
    """Raise InvalidScheduleError if plans without ``skipped``, in order, are too costly."""
    if len(skipped) > MAX_SKIPPED:
        rule = (
            f"the schedule has {MAX_SKIPPED} skipped fire times in the future, the limit: unskip()"
            " some, pause() the schedule, or exclude days with trigger.excluding()"
        )
        raise invalid("fire_time", skipped[-1], rule)
    if not spec.trigger.needs_budget:
        return
    try:
        # A plan may meet each of them. Its other searches take the rest of its budget.
        trigger = with_search_budget(spec, steps=PLAN_STEPS // 4).trigger
        for at in skipped:
            trigger.next_after(at)
    except InvalidTriggerError as error:
        rule = f"too many skipped fire times for this trigger, unskip() some: {error}"
        raise invalid("fire_time", skipped[-1], rule) from error


def _text() -> str:
    by = acting.current_actor()
    text = f"skipped by {by.actor or 'a call'}"
    return f"{text}: {by.reason}"[: 2 * TEXT_LENGTH] if by.reason else text


def _leave_out(
    session: Session,
    row: Schedule,
    spec: ScheduleSpec,
    fire_at: datetime,
    earlier: Collection[datetime],
    *,
    now: datetime,
) -> Skip | None:
    """Set ``skipped_until``, and the next fire time if it was ``fire_at``.

    ``earlier`` are the other skipped fire times. Returns the fire times that are too near to the
    last run, which the pass of ``fire_at`` would have recorded.
    """
    row.skipped_until = max(row.skipped_until or fire_at, fire_at)
    if row.next_fire_at != fire_at:
        return None
    near = too_near(without(spec, earlier), fire_at, (), row.last_run_at)
    after = without(spec, {*earlier, fire_at})
    timing.move_to(session, row, after, next_fire(after, fire_at), now=now)
    return near


def _check_was_not_passed(row: Schedule, spec: ScheduleSpec, fire_at: datetime) -> None:
    if _was_passed(row, spec, fire_at):
        rule = "has passed: beat decided on a later one before the clock was set back"
        raise invalid("fire_time", fire_at, rule)


def _was_passed(row: Schedule, spec: ScheduleSpec, fire_at: datetime) -> bool:
    """Return whether beat has decided on a fire time after ``fire_at``, which is in the future.

    The clock was then set back. Beat decides on fire times in their order, so ``fire_at`` could
    not run without those after it. ``spec`` yields ``fire_at``.
    """
    if timing.has_reached_max_runs(row):
        return row.last_run_at is not None and row.last_run_at > fire_at
    if row.next_fire_at is None and row.finished_at is None:
        # Unplanned.
        return False
    if row.next_fire_at is not None and row.next_fire_at <= fire_at:
        return False
    if row.last_run_at is not None and _is_too_near(spec, fire_at, row.last_run_at):
        return False
    return next_fire(spec, fire_at) != row.next_fire_at


def _is_too_near(spec: ScheduleSpec, fire_at: datetime, last_run_at: datetime) -> bool:
    return last_run_at <= fire_at < last_run_at + spec.min_interval


def _is_next(row: Schedule, spec: ScheduleSpec, fire_at: datetime, *, now: datetime) -> bool:
    """Return whether ``fire_at``, which is not skipped any more, is now the next fire time."""
    if row.next_fire_at is not None and row.next_fire_at <= fire_at:
        return False
    if row.next_fire_at is None and row.enabled and row.finished_at is None:
        # The schedule is unplanned, so beat will plan it.
        return False
    if timing.has_reached_max_runs(row) or not _is_fire_time(spec, fire_at):
        return False
    # After the clock was set back, the last run may be later.
    last_run_at = None if row.last_run_at is None else min(row.last_run_at, now)
    return last_run_at is None or last_run_at + spec.min_interval <= fire_at


def _not_skipped(
    fire_at: datetime, skipped: Collection[datetime], *, now: datetime
) -> InvalidScheduleError:
    future = sorted(at for at in skipped if at > now)
    named = ", ".join(map(str, future[:_MAX_NAMED]))
    rule = f"the next skipped ones are {named}" if named else "no fire time in the future is"
    return invalid("fire_time", fire_at, f"is not skipped by a call of skip(): {rule}")
