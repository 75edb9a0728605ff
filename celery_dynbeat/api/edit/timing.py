"""The next fire time of a schedule after an edit, and the fire times that the edit skips."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from celery_dynbeat.api.checks import invalid
from celery_dynbeat.api.columns import ScheduleColumns, ScheduleRow
from celery_dynbeat.api.edit import limits
from celery_dynbeat.common.errors import (
    InvalidScheduleError,
    InvalidTriggerError,
    UnusableCalendarError,
)
from celery_dynbeat.common.text import format_duration, format_seconds
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.db.statements import format_error
from celery_dynbeat.planning import (
    Calendars,
    ScheduleSpec,
    spec_from_row,
    with_skipped,
)
from celery_dynbeat.planning.plan import (
    MICROSECOND,
    Skip,
    blocked_fire,
    due_again,
    due_at,
    first_fire,
    first_planned,
    skip_missed,
)
from celery_dynbeat.process.context import Context, naming_schedule
from celery_dynbeat.store import runs, schedules
from celery_dynbeat.telemetry import emit_on_commit, events
from celery_dynbeat.triggers import Once, Trigger
from celery_dynbeat.triggers.wrappers import nominal
from celery_dynbeat.triggers.zones import describe_instant


def plan_new(
    context: Context,
    row: ScheduleColumns,
    *,
    trigger: Trigger,
    calendars: Calendars,
    now: datetime,
) -> None:
    """Set the first fire time of a new row, whose trigger uses ``calendars``.

    Raises InvalidScheduleError with the reason if the schedule never fires.
    """
    spec = spec_from_row(row, context.settings, calendars)
    _set_next_fire(row, spec, _first_fire(row, spec, now=now, is_new_trigger=True), now=now)
    if row.next_run_at is None:
        raise _never_fires(context, spec, row, trigger=trigger, now=now)


def plan_continued(
    context: Context,
    row: ScheduleRow,
    *,
    after: datetime,
    trigger: Trigger,
    calendars: Calendars,
    now: datetime,
) -> None:
    """Set the next fire time to the first one after ``after``.

    Fire times up to ``after`` have already been processed, here or by another scheduler. If the
    next fire time has passed, the schedule is due at once. Raises InvalidScheduleError if no fire
    time is left.
    """
    spec = spec_from_row(row, context.settings, calendars)
    fire_at = None if has_reached_max_runs(row) else first_planned(spec, now=after)
    _set_next_fire(row, spec, fire_at, now=now)
    if fire_at is None:
        raise _never_fires(context, spec, row, trigger=trigger, now=max(after, now))
    if not row.enabled:
        row.next_run_at = None


def spec_of(context: Context, session: Session, row: ScheduleRow) -> ScheduleSpec:
    """Return the spec of a row. Raises InvalidTriggerError."""
    # In the middle of an edit the row is incomplete and must not be flushed.
    with session.no_autoflush:
        calendars = schedules.calendars_of(session, [row])
    return spec_from_row(row, context.settings, calendars)


def plan_from(context: Context, session: Session, row: ScheduleRow, *, now: datetime) -> None:
    """Set the first fire time after ``now``. A row without a further fire time is finished.

    A row that has none only because of its calendars is quarantined. Raises InvalidTriggerError,
    which names the row, if its trigger cannot be read.
    """
    with naming_schedule(row):
        spec = spec_of(context, session, row)
        since, fire_at = row.next_fire_at, _first_fire(row, spec, now=now)
        _set_next_fire(row, spec, fire_at, now=now)
        _quarantine_blocked(session, row, spec, since=since, now=now)


def _quarantine_blocked(
    session: Session,
    row: ScheduleRow,
    spec: ScheduleSpec,
    *,
    since: datetime | None,
    now: datetime,
) -> None:
    """Quarantine a row that has no fire time only because of its calendars, unless it is already.

    ``since`` is the next fire time before the edit.
    """
    if row.next_fire_at is not None or row.error is not None:
        return
    blocked_at = _blocked_fire(spec, row, since=since, now=now)
    if blocked_at is None:
        return
    row.finished_at, row.next_fire_at = None, blocked_at
    row.error = format_error(UnusableCalendarError(spec.calendars))
    quarantined = events.ScheduleQuarantined(
        schedule_id=row.id, owner=row.owner, schedule=row.name, error=row.error, at=now
    )
    emit_on_commit(session, quarantined)


def _blocked_fire(
    spec: ScheduleSpec, row: ScheduleRow, *, since: datetime | None, now: datetime
) -> datetime | None:
    """Return the first fire time from ``since`` on that only its calendars have taken, or None."""
    return blocked_fire(
        spec, since=since or now, now=now, run_count=row.run_count, last_run_at=row.last_run_at
    )


def replan(
    context: Context,
    session: Session,
    row: Schedule,
    *,
    trigger: Trigger | None,
    is_new_trigger: bool,
    now: datetime,
) -> None:
    """Set the next fire time after an edit; a paused row stays out of the index.

    ``trigger`` is the caller's, or None if the caller gave none. ``is_new_trigger`` means that the
    trigger differs from the stored trigger. In this case, a one-off may have passed recently.
    Raises InvalidScheduleError if the schedule never fires.
    """
    if trigger is None:
        plan_from(context, session, row, now=now)
    else:
        spec = spec_of(context, session, row)
        fire_at = _first_fire(row, spec, now=now, is_new_trigger=is_new_trigger)
        if fire_at is not None and fire_at <= now:
            _check_has_no_run(session, row, fire_at, trigger=trigger)
        _set_next_fire(row, spec, fire_at, now=now)
        if row.next_run_at is None and row.enabled:
            raise _never_fires(context, spec, row, trigger=trigger, now=now)
    if not row.enabled:
        row.finished_at = row.next_run_at = None


def move_to(
    session: Session,
    row: Schedule,
    spec: ScheduleSpec,
    fire_at: datetime | None,
    *,
    now: datetime,
) -> None:
    """Set the next fire time; a paused or quarantined row stays out of the index.

    A row that has none only because of its calendars is quarantined.
    """
    since = row.next_fire_at
    _set_next_fire(row, spec, fire_at, now=now)
    _quarantine_blocked(session, row, spec, since=since, now=now)
    if not row.enabled or row.error is not None:
        row.finished_at = row.next_run_at = None


def apply_window(context: Context, session: Session, row: Schedule, *, now: datetime) -> None:
    """Set the next run by a new window; its fire time does not change."""
    if row.next_run_at is not None and row.next_fire_at is not None:
        with session.no_autoflush:
            calendars = schedules.calendars_of(session, [row])
        with naming_schedule(row):
            spec = spec_from_row(row, context.settings, calendars)
            at = due_again(spec, row.next_fire_at, planned_at=row.next_run_at, now=now)
            # If the schedule is held, beat finds that again.
            row.next_run_at, row.held_at = at, None


def has_waiting_fire_time(row: ScheduleRow, *, now: datetime) -> bool:
    """Return whether a fire time of an active row has passed and has no run.

    It waits for a release, for the end of quiet hours, or for a beat.
    """
    return row.next_run_at is not None and row.next_fire_at is not None and row.next_fire_at <= now


def missed_fire_times(
    context: Context, session: Session, row: ScheduleRow, *, now: datetime
) -> Sequence[Skip]:
    """Return the fire times of the row until ``now`` that beat did not send."""
    if row.next_fire_at is None:
        return ()
    try:
        spec = spec_of(context, session, row)
        return skip_missed(spec, fire_at=row.next_fire_at, now=now, reason=_missed_reason(row))
    except InvalidTriggerError:
        # The trigger is damaged or too costly to search. An edit must still be able to replace it.
        return ()


def _never_fires(
    context: Context, spec: ScheduleSpec, row: ScheduleRow, *, trigger: Trigger, now: datetime
) -> InvalidScheduleError:
    """Return the error for a row without a fire time after ``now``, with the first reason.

    The message shows ``trigger``, the one that the caller gave.
    """
    if has_reached_max_runs(row):
        rule = f"is reached after {row.run_count} runs: choose more, None, or use run_now()"
        return invalid("max_runs", row.max_runs, rule)
    if row.end_at is not None and row.end_at <= now:
        rule = f"lies in the past, it is {_shown(row, now)} now: choose a later instant, or None"
        return invalid("end_at", row.end_at, rule)
    if (blocked_at := _blocked_fire(spec, row, since=now, now=now)) is not None:
        rule = f"it has no fire time left, and that of {_shown(row, blocked_at)} is on a day of it"
        reason = str(UnusableCalendarError(spec.calendars, rule))
    else:
        reason = _no_fire_reason(context, spec, row, now)
    return invalid("trigger", trigger, f"would never fire: {reason}")


def _no_fire_reason(context: Context, spec: ScheduleSpec, row: ScheduleRow, now: datetime) -> str:
    """Return why the trigger has no fire time after ``now`` within the span of the row."""
    spec = with_skipped(spec)
    if row.start_at is not None and spec.trigger.next_after(row.start_at - MICROSECOND) is None:
        start = _shown(row, row.start_at)
        return f"all of its fire times are before start_at = {start}; choose an earlier one"
    if spec.trigger.next_after(now) is None:
        if isinstance(spec.trigger, Once):
            age, longest = format_duration(now - spec.trigger.at), format_seconds(spec.grace)
            return (
                f"its instant passed {age} ago, it is {_shown(row, now)} now, and"
                f" dynbeat_dispatch_timeout = {longest} is the longest delay; choose an instant in"
                " the future"
            )
        at = _shown(row, now)
        return f"its last fire time has passed, it is {at} now; choose a trigger that still fires"
    fire_at = first_fire(spec, now=now)
    if fire_at is None:
        first = "" if row.start_at is None else f" from start_at = {_shown(row, row.start_at)} on"
        end = _shown(row, row.end_at)
        return f"it has no fire time{first} until end_at = {end}; choose a later end_at"
    first, last = _shown(row, fire_at), _shown(row, row.last_run_at)
    limit = limits.min_interval_of(context.settings, row.owner).named
    return (
        f"each fire time that is left, the first at {first}, follows the last run, of {last}, by"
        f" less than {limit} = {format_seconds(spec.min_interval)}; choose a later one"
    )


def _shown(row: ScheduleRow, instant: datetime | None) -> str:
    return "none" if instant is None else describe_instant(instant, row.timezone)


def _set_next_fire(
    row: ScheduleRow, spec: ScheduleSpec, fire_at: datetime | None, *, now: datetime
) -> None:
    row.next_fire_at, row.held_at = fire_at, None
    # Not before now, because beat reads the index from its watermark on.
    row.next_run_at = None if fire_at is None else max(due_at(spec, fire_at, now=now), now)
    row.finished_at = now if fire_at is None else None


def _first_fire(
    row: ScheduleRow, spec: ScheduleSpec, *, now: datetime, is_new_trigger: bool = False
) -> datetime | None:
    if has_reached_max_runs(row):
        return None
    passed_at = _recently_passed(spec, now=now) if is_new_trigger else None
    return passed_at or first_planned(spec, now=now, last_run_at=row.last_run_at)


def _check_has_no_run(
    session: Session, row: Schedule, fire_at: datetime, *, trigger: Trigger
) -> None:
    # Without a flush, because the edit of the row is incomplete. If a run exists, the unique key
    # keeps it, even a revoked one, and beat would send nothing.
    with session.no_autoflush:
        has_run = runs.has_run(session, schedule_id=row.id, scheduled_for=fire_at)
    if has_run:
        rule = "already has its run; choose another instant, or use run_now()"
        raise invalid("trigger", trigger, rule)


def has_reached_max_runs(row: ScheduleRow) -> bool:
    """Return whether the row has made as many runs as ``max_runs`` allows."""
    return row.max_runs is not None and row.run_count >= row.max_runs


def _recently_passed(spec: ScheduleSpec, *, now: datetime) -> datetime | None:
    """Return the instant of a one-off that passed within the grace and fires at once, else None."""
    trigger = nominal(spec.trigger)
    if not isinstance(trigger, Once):
        return None
    at = trigger.at
    in_span = (spec.start_at is None or spec.start_at <= at) and (
        spec.end_at is None or at <= spec.end_at
    )
    return at if in_span and now - spec.grace <= at <= now else None


def _missed_reason(row: ScheduleRow) -> str:
    if row.error is not None:
        return "missed: the schedule was quarantined"
    if not row.enabled:
        return "missed: the schedule was paused"
    if row.held_at is not None:
        return "missed: the schedule was held"
    return "missed: the schedule was edited before a beat could send it"
