"""Days that depend on the month: the last day, the nearest weekday, the second Monday."""

import calendar
from dataclasses import dataclass
from typing import NamedTuple

_SUNDAY, _SATURDAY = 0, 6
#: ``NthWeekday.week`` of ``friL``, the last Friday of the month. ``#`` counts from 1 to 5.
LAST_WEEK = 6


class Month(NamedTuple):
    """A month of a year: its length, and the day of week before its first day (Sunday is 0)."""

    offset: int
    length: int

    @classmethod
    def of(cls, year: int, month: int) -> "Month":
        """Return a month of the calendar."""
        # calendar counts from Monday = 0. In cron's numbers that is the day before.
        return cls(*calendar.monthrange(year, month))

    def weekday(self, day: int) -> int:
        """Return the day of week of a day. Sunday is 0."""
        return (self.offset + day) % 7


@dataclass(frozen=True, slots=True)
class MonthDay:
    """A day counted from the start or end of the month, or the nearest weekday to it.

    ``L`` is the last day, ``L-3`` the third day before it. A weekday is Monday to Friday. ``LW``
    is the weekday nearest to the last day. ``W`` never leaves the month, so that is the last
    weekday.
    """

    number: int
    from_end: bool
    nearest: bool

    def on(self, month: Month) -> int | None:
        """Return the day in ``month``, None if the month has no such day."""
        day = month.length - self.number if self.from_end else self.number
        if not 1 <= day <= month.length:
            return None
        return _nearest_weekday(day, month) if self.nearest else day


@dataclass(frozen=True, slots=True)
class NthWeekday:
    """A day of the week in the first to fifth week of the month, or in its LAST_WEEK."""

    weekday: int
    week: int

    def on(self, month: Month) -> int | None:
        """Return the day in ``month``, None if the month has no such day."""
        first = 1 + (self.weekday - month.weekday(1)) % 7
        if self.week == LAST_WEEK:
            return first + (month.length - first) // 7 * 7
        day = first + 7 * (self.week - 1)
        return day if day <= month.length else None


def _nearest_weekday(day: int, month: Month) -> int:
    """Return the weekday nearest to ``day`` in the same month: the rule of Quartz and croniter."""
    weekday = month.weekday(day)
    if weekday == _SATURDAY:
        return day - 1 if day > 1 else day + 2
    if weekday == _SUNDAY:
        return day + 1 if day < month.length else day - 2
    return day
