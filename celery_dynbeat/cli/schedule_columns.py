"""The columns of lists of schedules and of runs."""

from typing import Any

from celery_dynbeat.api import RunInfo, ScheduleInfo
from celery_dynbeat.cli.base.columns import Column, owner_column, state_style, time_column
from celery_dynbeat.insights.explain.runs import wait_text


def _trigger(schedule: ScheduleInfo) -> Any:
    return "(damaged)" if schedule.trigger is None else schedule.given_trigger


def _zone(schedule: ScheduleInfo) -> str | None:
    """Return the time zone that the trigger follows, or None if it follows no wall clock."""
    return None if schedule.trigger is None else schedule.trigger.timezone


def _first_line(text: str | None) -> str | None:
    return None if text is None else text.partition("\n")[0]


def _error(run: RunInfo) -> str | None:
    """Return what the run waits for, or the first line of its error."""
    return f"waits {wait_text(run)}" if run.is_waiting else _first_line(run.error)


SCHEDULES = (
    owner_column(),
    Column("name", width=12),
    Column("task", width=12),
    Column("trigger", _trigger, width=12),
    Column("state", style=state_style),
    time_column("next_run_at"),
    time_column("last_run_at", optional=True),
    Column("tags", optional=True),
    Column("timezone", _zone, optional=True),
)
RUNS = (
    owner_column(),
    Column("name", width=8),
    time_column("scheduled_for"),
    Column("status", width=9, style=state_style),
    Column("id", width=36),
    Column("error", _error, width=20, optional=True),
    Column("lag", optional=True),
    Column("took", lambda run: run.duration, optional=True),
    Column("origin", optional=True),
    Column("attempt", width=7, optional=True),
    Column("worker", width=10, optional=True),
    Column("note", lambda run: _first_line(run.note), width=20, optional=True),
)
