"""What an edit does to the times of a row: planned from now, telling what that leaves out."""

from datetime import datetime

from celery_dynbeat.client.checks import refuse
from celery_dynbeat.client.context import Context
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.errors import InvalidScheduleError, InvalidTriggerError
from celery_dynbeat.planning import Skip, first_fire, passed, run_at
from celery_dynbeat.triggers import Trigger


def plan_from(context: Context, row: Schedule, *, now: datetime) -> None:
    """Give a row the first fire time after ``now``; one that has none is finished."""
    spent = row.max_runs is not None and row.run_count >= row.max_runs
    rule = context.rule(row)
    fire_at = None if spent else first_fire(rule, now=now, last_run_at=row.last_run_at)
    row.next_fire_at = fire_at
    row.next_run_at = None if fire_at is None else run_at(rule, fire_at)
    row.finished_at = now if fire_at is None else None


def replan(context: Context, row: Schedule, *, trigger: Trigger | None, now: datetime) -> None:
    """Do so after an edit; a paused row stays out of the index.

    Raises InvalidScheduleError when a new ``trigger`` would never fire.
    """
    plan_from(context, row, now=now)
    if not row.enabled:
        row.finished_at = row.next_run_at = None
        return
    if row.next_run_at is None and trigger is not None:
        raise never_fires(trigger, row, now=now)


def delay(context: Context, row: Schedule) -> None:
    """Apply another jitter to a fire time that stays what it is."""
    if row.next_run_at is not None and row.next_fire_at is not None:
        row.next_run_at = run_at(context.rule(row), row.next_fire_at)


def missed(context: Context, row: Schedule, *, now: datetime) -> Skip | None:
    """Return what passed of the row's fire times and was not sent, by the rule that it states."""
    if row.next_fire_at is None:
        return None
    try:
        rule = context.rule(row)
    except InvalidTriggerError:
        # When damaged text would have fired, nobody can say.
        return None
    return passed(rule, fire_at=row.next_fire_at, now=now, reason=_why(row))


def never_fires(trigger: Trigger, row: Schedule, *, now: datetime) -> InvalidScheduleError:
    """Return the error for a trigger that lies wholly in the past, or outside the span."""
    rule = (
        f"would never fire again within start_at = {row.start_at}, end_at = {row.end_at},"
        f" max_runs = {row.max_runs} (it is {now} now); give a time in the future, or"
        " use run_now()"
    )
    return refuse("trigger", trigger, rule)


def _why(row: Schedule) -> str:
    if row.error is not None:
        return "missed: the schedule was broken"
    if not row.enabled:
        return "missed: the schedule was paused"
    return "missed: the schedule was edited before a beat could send it"
