"""Convert a caller's object to the trigger that a schedule stores.

Celery's classes are imported only for a value that could be an instance of one.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeAlias

from celery import Celery

from celery_dynbeat.api.checks import invalid
from celery_dynbeat.common.text import as_text
from celery_dynbeat.triggers import Every, Once, Trigger


class TaskObject(Protocol):
    """A Celery task, as ``@app.task`` creates it."""

    @property
    def name(self) -> str:
        """The name under which workers register the task."""

    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        """Send the task."""


class CelerySchedule(Protocol):
    """One of Celery's own schedules: ``crontab``, ``schedule``, ``solar``."""

    def remaining_estimate(self, last_run_at: Any, /) -> Any:
        """Return the time until the next run."""

    def is_due(self, last_run_at: Any, /) -> Any:
        """Return whether a run is due."""


TaskLike: TypeAlias = str | TaskObject
TriggerLike: TypeAlias = Trigger | str | timedelta | datetime | CelerySchedule

_TRIGGERS = (
    "must be a trigger (Cron, Every, Once ...), a string ('0 9 * * mon-fri', 'PT5M', '@daily', or"
    " the lines of an RRULE), a timedelta, an aware datetime, or Celery's crontab, schedule or"
    " solar"
)


def trigger_of(given: object, *, app: Celery, timezone: str | None = None) -> Trigger:
    """Return the trigger for ``given``.

    Celery's ``crontab`` follows the zone of the application that it names, or else the zone of
    ``app``. If this zone is ``timezone``, the default zone of triggers, the resulting trigger does
    not name a zone. Raises InvalidScheduleError with field ``"trigger"`` for an object of another
    type, and InvalidTriggerError for a string or value that is not a valid trigger.
    """
    if isinstance(given, Trigger):
        return given
    given = as_text(given)
    if isinstance(given, str):
        return Trigger.from_text(given)
    if isinstance(given, timedelta):
        return Every(given)
    if isinstance(given, datetime):
        return Once(given)
    return _trigger_of_celery(given, app=app, timezone=timezone)


def _trigger_of_celery(given: object, *, app: Celery, timezone: str | None) -> Trigger:
    from celery.schedules import BaseSchedule  # noqa: PLC0415 - most callers pass a trigger

    if isinstance(given, BaseSchedule):
        from celery_dynbeat import celery_schedules  # noqa: PLC0415

        trigger = celery_schedules.trigger_of(given, timezone=str(app.timezone), field="trigger")
        return celery_schedules.without_zone(trigger, given, timezone)
    rule = _TRIGGERS
    if isinstance(given, Mapping):
        rule += "; to read the output of to_json() call Trigger.from_json()"
    elif isinstance(given, int | float) and not isinstance(given, bool):
        rule += "; for a number of seconds write Every(seconds)"
    raise invalid("trigger", given, rule)
