"""What an edit does to the times of a row: planned from now, telling what that leaves out."""

from datetime import datetime

from sqlalchemy.orm import Session

from celery_dynbeat.client.checks import invalid
from celery_dynbeat.common.errors import InvalidScheduleError, InvalidTriggerError
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.planning.plan import MICROSECOND, Skip, first_fire, run_at, skip_missed
from celery_dynbeat.planning.schedule_spec import ScheduleSpec
from celery_dynbeat.runtime.context import Context, naming_schedule
from celery_dynbeat.store import runs
from celery_dynbeat.triggers import Once, Trigger


def plan_new(context: Context, row: Schedule, *, trigger: Trigger, now: datetime) -> None:
    """Give a new row its first fire time.

    Raises InvalidScheduleError when it has none, for the reason that it has none.
    """
    spec = context.spec(row)
    _plan(row, spec, _first_fire(row, spec, now=now, trigger_changed=True), now=now)
    if row.next_run_at is None:
        raise never_fires(spec, row, trigger=trigger, now=now)


def plan_from(context: Context, row: Schedule, *, now: datetime) -> None:
    """Give a row the first fire time after ``now``; one that has none is finished.

    Raises InvalidTriggerError, which names the row, when its trigger cannot be read.
    """
    with naming_schedule(row):
        spec = context.spec(row)
        _plan(row, spec, _first_fire(row, spec, now=now), now=now)


def replan(
    context: Context,
    session: Session,
    row: Schedule,
    *,
    trigger: Trigger | None,
    trigger_changed: bool,
    now: datetime,
) -> None:
    """Do so after an edit; a paused row stays out of the index.

    ``trigger`` is the caller's. With ``trigger_changed`` it differs from the stored one: a one-off
    may then have passed just now. Raises InvalidScheduleError when it would never fire.
    """
    if trigger is None:
        plan_from(context, row, now=now)
    else:
        spec = context.spec(row)
        fire_at = _first_fire(row, spec, now=now, trigger_changed=trigger_changed)
        if fire_at is not None and fire_at <= now:
            _check_not_run(session, row, fire_at, trigger=trigger)
        _plan(row, spec, fire_at, now=now)
        if row.next_run_at is None and row.enabled:
            raise never_fires(spec, row, trigger=trigger, now=now)
    if not row.enabled:
        row.finished_at = row.next_run_at = None


def apply_jitter(context: Context, row: Schedule) -> None:
    """Apply another jitter to a fire time that stays what it is."""
    if row.next_run_at is not None and row.next_fire_at is not None:
        with naming_schedule(row):
            row.next_run_at = run_at(context.spec(row), row.next_fire_at)


def skip_missed_fire_times(context: Context, row: Schedule, *, now: datetime) -> Skip | None:
    """Return what passed of the row's fire times and was not sent, by the rule that it states."""
    if row.next_fire_at is None:
        return None
    try:
        spec = context.spec(row)
        return skip_missed(spec, fire_at=row.next_fire_at, now=now, reason=_missed_reason(row))
    except InvalidTriggerError:
        # The text is damaged, or too costly to search. An edit must be able to replace it.
        return None


def never_fires(
    spec: ScheduleSpec, row: Schedule, *, trigger: Trigger, now: datetime
) -> InvalidScheduleError:
    """Return the error for a row that has no fire time after ``now``, with the first reason.

    ``trigger`` is shown as the one that the caller gave.
    """
    if _has_reached_max_runs(row):
        reason = f"has been reached, with {row.run_count} runs: give more, or None"
        return invalid("max_runs", row.max_runs, f"{reason}, or use run_now()")
    if row.end_at is not None and row.end_at <= now:
        reason = f"lies in the past, it is {now} now: give a later instant, or None"
        return invalid("end_at", row.end_at, reason)
    return invalid("trigger", trigger, f"would never fire: {_no_fire_time_reason(spec, row, now)}")


def _no_fire_time_reason(spec: ScheduleSpec, row: Schedule, now: datetime) -> str:
    """Return why the trigger itself has no fire time after ``now`` within the span of the row."""
    if row.start_at is not None and spec.trigger.next_after(row.start_at - MICROSECOND) is None:
        return f"all of its fire times lie before start_at = {row.start_at}; give an earlier one"
    if spec.trigger.next_after(now) is None:
        if isinstance(spec.trigger, Once):
            return (
                f"its instant passed {now - spec.trigger.at} ago, it is {now} now, and only one"
                f" that passed within dynbeat_dispatch_timeout = {spec.grace} fires at once; give"
                " one in the future, such as Once.after(timedelta(0))"
            )
        return f"its last fire time has passed, it is {now} now; give one with later fire times"
    within = first_fire(spec, now=now)
    if within is None:
        start = "" if row.start_at is None else f" from start_at = {row.start_at} on"
        return f"it has no fire time{start} until end_at = {row.end_at}; give a later one"
    return (
        f"its fire times that are left, the first at {within}, are nearer than"
        f" dynbeat_min_interval = {spec.min_interval} to the last run, of {row.last_run_at}; give a"
        " later one"
    )


def _plan(row: Schedule, spec: ScheduleSpec, fire_at: datetime | None, *, now: datetime) -> None:
    row.next_fire_at = fire_at
    # Not in the past: beat reads the index from where it has been.
    row.next_run_at = None if fire_at is None else max(run_at(spec, fire_at), now)
    row.finished_at = now if fire_at is None else None


def _first_fire(
    row: Schedule, spec: ScheduleSpec, *, now: datetime, trigger_changed: bool = False
) -> datetime | None:
    if _has_reached_max_runs(row):
        return None
    late = _just_passed(spec, now=now) if trigger_changed else None
    return late or first_fire(spec, now=now, last_run_at=row.last_run_at)


def _check_not_run(session: Session, row: Schedule, fire_at: datetime, *, trigger: Trigger) -> None:
    # The row is half edited. The unique key would keep the run that there is, which may be revoked:
    # nothing would be sent.
    with session.no_autoflush:
        present = runs.has_run(session, schedule_id=row.id, scheduled_for=fire_at)
    if present:
        rule = "has had its run already; give another instant, or use run_now()"
        raise invalid("trigger", trigger, rule)


def _has_reached_max_runs(row: Schedule) -> bool:
    return row.max_runs is not None and row.run_count >= row.max_runs


def _just_passed(spec: ScheduleSpec, *, now: datetime) -> datetime | None:
    """Return the instant of a one-off that passed so recently that it fires at once, else None."""
    if not isinstance(spec.trigger, Once):
        return None
    at = spec.trigger.at
    in_span = (spec.start_at is None or spec.start_at <= at) and (
        spec.end_at is None or at <= spec.end_at
    )
    return at if in_span and now - spec.grace <= at <= now else None


def _missed_reason(row: Schedule) -> str:
    if row.error is not None:
        return "missed: the schedule was broken"
    if not row.enabled:
        return "missed: the schedule was paused"
    return "missed: the schedule was edited before a beat could send it"
