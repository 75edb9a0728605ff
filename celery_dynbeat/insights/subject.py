"""The specification of the schedule that a figure or an explanation is about."""

from sqlalchemy.orm import Session

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.planning import ScheduleSpec, spec_from_row, with_search_budget
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import schedules
from celery_dynbeat.triggers.base import PLAN_STEPS


def spec_of(
    context: Context, session: Session, row: Schedule, *, steps: int = PLAN_STEPS
) -> ScheduleSpec | None:
    """Return the spec of a row, whose searches share a budget of ``steps``.

    It is None if the trigger cannot be read: manual SQL changed the row, and beat quarantines the
    schedule when it is due.
    """
    calendars = schedules.calendars_of(session, [row])
    try:
        return with_search_budget(spec_from_row(row, context.settings, calendars), steps=steps)
    except InvalidTriggerError:
        return None
