"""The schedules that use a shared calendar."""

from sqlalchemy.orm import Session

from celery_dynbeat.api import Page, ScheduleInfo, checks
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import calendars


def calendar_schedules(
    context: Context, *, name: str, limit: int = 25, session: Session | None = None
) -> Page[ScheduleInfo]:
    """Return up to ``limit`` schedules that use the calendar ``name``, in one page.

    Those that beat has not planned with the newest version come first.
    """
    checks.check_limit("limit", limit)

    def work(session: Session) -> Page[ScheduleInfo]:
        rows = calendars.first_schedules(session, name=name, limit=limit)
        return Page(tuple(map(ScheduleInfo.of, rows)), None)

    return context.read_many(session, work)
