"""What an edit does to the times of a row: planned from now, telling what that leaves out."""

from datetime import datetime

from sqlalchemy.orm import Session

from celery_dynbeat.client.checks import refuse
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
    rule = context.spec(row)
    _plan(row, rule, _first_fire(row, rule, now=now, written=True), now=now)
    if row.next_run_at is None:
        raise never_fires(rule, row, trigger=trigger, now=now)


def plan_from(context: Context, row: Schedule, *, now: datetime) -> None:
    """Give a row the first fire time after ``now``; one that has none is finished.

    Raises InvalidTriggerError, which names the row, when its trigger cannot be read.
    """
    with naming_schedule(row):
        rule = context.spec(row)
        _plan(row, rule, _first_fire(row, rule, now=now), now=now)


def replan(
    context: Context,
    session: Session,
    row: Schedule,
    *,
    trigger: Trigger | None,
    written: bool,
    now: datetime,
) -> None:
    """Do so after an edit; a paused row stays out of the index.

    ``trigger`` is the one that the caller gave, and ``written`` that it is another than before: a
    one-off may then have passed just now. Raises InvalidScheduleError when it would never fire.
    """
    if trigger is None:
        plan_from(context, row, now=now)
    else:
        rule = context.spec(row)
        fire_at = _first_fire(row, rule, now=now, written=written)
        if fire_at is not None and fire_at <= now:
            _refuse_second_run(session, row, fire_at, trigger=trigger)
        _plan(row, rule, fire_at, now=now)
        if row.next_run_at is None and row.enabled:
            raise never_fires(rule, row, trigger=trigger, now=now)
    if not row.enabled:
        row.finished_at = row.next_run_at = None


def delay(context: Context, row: Schedule) -> None:
    """Apply another jitter to a fire time that stays what it is."""
    if row.next_run_at is not None and row.next_fire_at is not None:
        with naming_schedule(row):
            row.next_run_at = run_at(context.spec(row), row.next_fire_at)


def missed(context: Context, row: Schedule, *, now: datetime) -> Skip | None:
    """Return what passed of the row's fire times and was not sent, by the rule that it states."""
    if row.next_fire_at is None:
        return None
    try:
        rule = context.spec(row)
        return skip_missed(rule, fire_at=row.next_fire_at, now=now, reason=_why(row))
    except InvalidTriggerError:
        # The text is damaged, or too costly to search. An edit must be able to replace it.
        return None


def never_fires(
    rule: ScheduleSpec, row: Schedule, *, trigger: Trigger, now: datetime
) -> InvalidScheduleError:
    """Return the error for a row that has no fire time after ``now``, with the first reason.

    ``trigger`` is shown as the one that the caller gave.
    """
    if _is_spent(row):
        reason = f"has been reached, with {row.run_count} runs: give more, or None"
        return refuse("max_runs", row.max_runs, f"{reason}, or use run_now()")
    if row.end_at is not None and row.end_at <= now:
        reason = f"lies in the past, it is {now} now: give a later instant, or None"
        return refuse("end_at", row.end_at, reason)
    return refuse("trigger", trigger, f"would never fire: {_reason(rule, row, now)}")


def _reason(rule: ScheduleSpec, row: Schedule, now: datetime) -> str:
    """Return why the trigger itself has no fire time after ``now`` within the span of the row."""
    if row.start_at is not None and rule.trigger.next_after(row.start_at - MICROSECOND) is None:
        return f"all of its fire times lie before start_at = {row.start_at}; give an earlier one"
    if rule.trigger.next_after(now) is None:
        if isinstance(rule.trigger, Once):
            return (
                f"its instant passed {now - rule.trigger.at} ago, it is {now} now, and only one"
                f" that passed within dynbeat_dispatch_timeout = {rule.grace} fires at once; give"
                " one in the future, such as Once.after(timedelta(0))"
            )
        return f"its last fire time has passed, it is {now} now; give one with later fire times"
    within = first_fire(rule, now=now)
    if within is None:
        start = "" if row.start_at is None else f" from start_at = {row.start_at} on"
        return f"it has no fire time{start} until end_at = {row.end_at}; give a later one"
    return (
        f"its fire times that are left, the first at {within}, are nearer than"
        f" dynbeat_min_interval = {rule.min_interval} to the last run, of {row.last_run_at}; give a"
        " later one"
    )


def _plan(row: Schedule, rule: ScheduleSpec, fire_at: datetime | None, *, now: datetime) -> None:
    row.next_fire_at = fire_at
    # Not in the past: beat reads the index from where it has been.
    row.next_run_at = None if fire_at is None else max(run_at(rule, fire_at), now)
    row.finished_at = now if fire_at is None else None


def _first_fire(
    row: Schedule, rule: ScheduleSpec, *, now: datetime, written: bool = False
) -> datetime | None:
    if _is_spent(row):
        return None
    late = _late(rule, now=now) if written else None
    return late or first_fire(rule, now=now, last_run_at=row.last_run_at)


def _refuse_second_run(
    session: Session, row: Schedule, fire_at: datetime, *, trigger: Trigger
) -> None:
    # The row is half edited. The unique key would keep the run that there is, which may be revoked:
    # nothing would be sent.
    with session.no_autoflush:
        present = runs.has_run(session, schedule_id=row.id, scheduled_for=fire_at)
    if present:
        rule = "has had its run already; give another instant, or use run_now()"
        raise refuse("trigger", trigger, rule)


def _is_spent(row: Schedule) -> bool:
    return row.max_runs is not None and row.run_count >= row.max_runs


def _late(rule: ScheduleSpec, *, now: datetime) -> datetime | None:
    """Return the instant of a one-off that passed so recently that it fires at once, else None."""
    if not isinstance(rule.trigger, Once):
        return None
    at = rule.trigger.at
    in_span = (rule.start_at is None or rule.start_at <= at) and (
        rule.end_at is None or at <= rule.end_at
    )
    return at if in_span and now - rule.grace <= at <= now else None


def _why(row: Schedule) -> str:
    if row.error is not None:
        return "missed: the schedule was broken"
    if not row.enabled:
        return "missed: the schedule was paused"
    return "missed: the schedule was edited before a beat could send it"
