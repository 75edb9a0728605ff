"""The schedule that a figure is about, and the rule of its upcoming fire times."""

from sqlalchemy.orm import Session

from celery_dynbeat.common.errors import InvalidTriggerError, ScheduleNotFoundError
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.planning import ScheduleSpec, spec_from_row, with_search_budget
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import schedules
from celery_dynbeat.triggers.base import SEARCH_STEPS


def schedule_row(session: Session, *, owner: str, name: str) -> Schedule:
    """Return the row of the schedule. Raises ScheduleNotFoundError."""
    row = schedules.get(session, owner=owner, name=name)
    if row is None:
        raise ScheduleNotFoundError(owner=owner, name=name)
    return row


def upcoming_spec(context: Context, session: Session, row: Schedule) -> ScheduleSpec | None:
    """Return the spec of a row, whose searches share the budget of one search.

    It is None if the trigger cannot be read.
    """
    calendars = schedules.calendars_of(session, [row])
    try:
        whole = spec_from_row(row, context.settings, calendars)
        return with_search_budget(whole, steps=SEARCH_STEPS)
    except InvalidTriggerError:
        return None
