"""Skip single fire times of a schedule, and restore them.

The fire times are in the column ``skips`` of the row, with the reasons. Plans leave them out. Beat
records them as skipped, and removes them from the column, when it decides about a later fire time.
If no other fire time is left, the schedule is due at a skipped one, and finishes then.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from celery_dynbeat.api import acting
from celery_dynbeat.api.checks import invalid
from celery_dynbeat.api.columns import ScheduleRow
from celery_dynbeat.api.edit import timing
from celery_dynbeat.common.errors import InvalidScheduleError, InvalidTriggerError
from celery_dynbeat.common.text import cut
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.planning import (
    ScheduleSpec,
    as_skips,
    skips_in,
    with_search_budget,
    with_skipped,
)
from celery_dynbeat.planning.plan import MICROSECOND, next_fire, next_planned, takes_out
from celery_dynbeat.process.context import Context, naming_schedule
from celery_dynbeat.store import runs
from celery_dynbeat.triggers.base import PLAN_STEPS

#: Skipped fire times in a row. Each can cost beat a search in each plan. Those of a paused schedule
#: stay until the resume.
MAX_SKIPPED = 100
#: Skipped fire times that an error names.
_MAX_NAMED = 3
#: The characters of the reason of a skipped fire time, because the row is read in each claim.
_REASON_LENGTH = 300


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
    with naming_schedule(row):
        earlier = skips_in(row.skips)
        if fire_at in earlier:
            return False
        spec = with_skipped(timing.spec_of(context, session, row))
        _check_is_fire_time(spec, fire_at, now=now)
    if len(earlier) >= MAX_SKIPPED:
        # An edit may have left some that are no fire times any more.
        limited = with_search_budget(spec)
        earlier = {
            at: reason for at, reason in earlier.items() if at <= now or _is_fire_time(limited, at)
        }
    _check_number(spec, sorted({fire_at, *earlier}))
    if runs.has_run(session, schedule_id=row.id, scheduled_for=fire_at):
        rule = "the schedule already has a run for this fire time; see runs()"
        raise invalid("fire_time", fire_at, rule)
    _write(context, session, row, {**earlier, fire_at: _reason()}, fire_at, now=now)
    return True


def unskip(
    context: Context, session: Session, row: Schedule, fire_at: datetime, *, now: datetime
) -> None:
    """Put a skipped fire time back into a locked row.

    Raises InvalidScheduleError and InvalidTriggerError.
    """
    _check_is_future(fire_at, now)
    with naming_schedule(row):
        skipped = skips_in(row.skips)
    if fire_at not in skipped:
        raise _not_skipped(fire_at, skipped, now=now)
    others = {at: reason for at, reason in skipped.items() if at != fire_at}
    _write(context, session, row, others, fire_at, now=now)


def _write(
    context: Context,
    session: Session,
    row: Schedule,
    skipped: Mapping[datetime, str],
    changed_at: datetime,
    *,
    now: datetime,
) -> None:
    """Store ``skipped``, and set the next fire time if the change at ``changed_at`` moves it."""
    next_at, was_skipped = row.next_fire_at, row.next_fire_at in skips_in(row.skips)
    row.skips = as_skips(skipped)
    is_earlier = next_at is not None and changed_at < next_at and changed_at not in skipped
    if next_at is None or not (changed_at == next_at or was_skipped or is_earlier):
        return
    try:
        with naming_schedule(row):
            spec = timing.spec_of(context, session, row)
            fire_at = next_planned(spec, min(changed_at, next_at) - MICROSECOND)
            if not _is_too_near(row, spec, fire_at, now=now):
                timing.move_to(session, row, spec, fire_at, now=now)
    except Exception:
        # A caller that catches the error and commits must not write half of the edit.
        session.expire(row)
        raise


def _is_too_near(
    row: Schedule, spec: ScheduleSpec, fire_at: datetime | None, *, now: datetime
) -> bool:
    """Return whether the fire time follows the last run by less than ``min_interval``."""
    if fire_at is None or row.last_run_at is None:
        return False
    # After the clock was set back, the last run may be later.
    return fire_at < min(row.last_run_at, now) + spec.min_interval


def in_future(
    context: Context, session: Session, row: ScheduleRow, *, now: datetime
) -> Mapping[datetime, str]:
    """Return the skipped fire times after ``now`` that the trigger of the row yields."""
    future = {at: reason for at, reason in skips_in(row.skips).items() if at > now}
    if not future:
        return {}
    spec = with_search_budget(timing.spec_of(context, session, row))
    return {at: reason for at, reason in future.items() if takes_out(spec, at)}


def drop_passed(row: ScheduleRow, *, now: datetime) -> None:
    """Remove the skipped fire times up to ``now`` from a row. Raises InvalidTriggerError."""
    with naming_schedule(row):
        skipped = skips_in(row.skips)
    row.skips = as_skips({at: reason for at, reason in skipped.items() if at > now})


def check_cost(context: Context, session: Session, row: ScheduleRow, *, now: datetime) -> None:
    """Raise InvalidScheduleError if an edit made the plans without the skips too costly."""
    future = [at for at in skips_in(row.skips) if at > now]
    if not future:
        return
    with naming_schedule(row):
        spec = with_skipped(timing.spec_of(context, session, row))
        limited = with_search_budget(spec)
        _check_number(spec, [at for at in future if _is_fire_time(limited, at)])


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
            f"the schedule has {MAX_SKIPPED} skipped fire times, the limit: unskip() some,"
            " resume() the schedule if it is paused, or exclude days with trigger.excluding()"
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


def _reason() -> str:
    by = acting.current_actor()
    text = f"skipped by {by.actor or 'a call'}"
    return cut(f"{text}: {by.reason}" if by.reason else text, _REASON_LENGTH)


def _not_skipped(
    fire_at: datetime, skipped: Collection[datetime], *, now: datetime
) -> InvalidScheduleError:
    future = sorted(at for at in skipped if at > now)
    named = ", ".join(map(str, future[:_MAX_NAMED]))
    rule = f"the next skipped ones are {named}" if named else "no fire time in the future is"
    return invalid("fire_time", fire_at, f"is not skipped by a call of skip(): {rule}")
