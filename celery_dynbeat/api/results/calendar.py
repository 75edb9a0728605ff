"""The results of the API's calls for shared calendars."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from celery_dynbeat.api.results.base import Info
from celery_dynbeat.api.results.page import BoundedCount
from celery_dynbeat.triggers import CalendarDays
from celery_dynbeat.triggers.calendar_days import WEEKDAY_NAMES

if TYPE_CHECKING:
    from celery_dynbeat.db.calendar_models import Calendar


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarInfo(Info):
    """A snapshot of a shared calendar. Instants are aware and in UTC.

    - ``dates`` are its days in order, each with its note, or "".
    - ``weekend`` are the days of the week that are not business days, such as ``("sat", "sun")``.
    - ``in_force_at`` is when beat finished planning the schedules with this ``version``, or None
      until then.
    - ``schedules`` is the number of schedules that use the calendar. ``waiting_schedules`` is the
      number of them that are not planned with this version yet. Both are at most 10,000. In a list
      of calendars, both are None.
    """

    name: str
    dates: Mapping[date, str]
    weekend: tuple[str, ...]
    version: int
    created_at: datetime
    updated_at: datetime
    updated_by: str
    in_force_at: datetime | None
    schedules: BoundedCount | None
    waiting_schedules: BoundedCount | None

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that ``json.dumps`` accepts."""
        dates = {day.isoformat(): note for day, note in self.dates.items()}
        return {**Info.to_dict(self), "dates": dates}

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
            dates={day: days.notes.get(day, "") for day in sorted(days.dates)},
            weekend=tuple(WEEKDAY_NAMES[number] for number in sorted(days.weekend)),
            version=row.version,
            created_at=row.created_at,
            updated_at=row.updated_at,
            updated_by=row.updated_by,
            in_force_at=None if is_waiting else row.in_force_at,
            schedules=schedules,
            waiting_schedules=waiting,
        )
