"""The results of the API's calls for shared calendars."""

from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING

from celery_dynbeat.api.results.base import Info
from celery_dynbeat.api.results.page import BoundedCount
from celery_dynbeat.triggers import CalendarDays, Trigger
from celery_dynbeat.triggers.calendar_days import WEEKDAY_NAMES

if TYPE_CHECKING:
    from celery_dynbeat.db.calendar_models import Calendar


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarInfo(Info):
    """A snapshot of a shared calendar. Instants are aware and in UTC.

    - Its days are ``dates``, in order, or the days on which ``trigger`` fires.
    - A trigger that names no zone uses ``timezone``. None means the zone of each schedule.
    - ``weekend`` are the days of the week that are not business days, such as ``("sat", "sun")``.
    - ``in_force_at`` is when beat finished planning the schedules with this ``version``, or None
      until then.
    - ``schedules`` is the number of schedules that use the calendar. ``waiting_schedules`` is the
      number of them that are not planned with this version yet. Both are at most 10,000. In a list
      of calendars, both are None.
    """

    name: str
    dates: tuple[date, ...]
    trigger: Trigger | None
    timezone: str | None
    weekend: tuple[str, ...]
    version: int
    created_at: datetime
    updated_at: datetime
    updated_by: str
    in_force_at: datetime | None
    schedules: BoundedCount | None
    waiting_schedules: BoundedCount | None

    @classmethod
    def of(
        cls,
        row: "Calendar",
        days: CalendarDays,
        *,
        schedules: BoundedCount | None = None,
        waiting: BoundedCount | None = None,
    ) -> "CalendarInfo":
        """Return a snapshot of a row with its days."""
        is_waiting = waiting is not None and waiting.count > 0
        return cls(
            name=row.name,
            dates=tuple(sorted(days.dates)),
            trigger=days.trigger,
            timezone=row.timezone,
            weekend=tuple(WEEKDAY_NAMES[number] for number in sorted(days.weekend)),
            version=row.version,
            created_at=row.created_at,
            updated_at=row.updated_at,
            updated_by=row.updated_by,
            in_force_at=None if is_waiting else row.in_force_at,
            schedules=schedules,
            waiting_schedules=waiting,
        )
