"""Days that only the calendar can name: the last, the nearest weekday, the second Monday."""

import calendar
from dataclasses import dataclass
from typing import NamedTuple

_SUNDAY, _SATURDAY = 0, 6
#: The week of ``friL``, the last Friday of the month; after all that ``#`` counts.
LAST = 6


class Month(NamedTuple):
    """One month of one year: the day of week before its first (Sunday is 0), and its length."""

    offset: int
    length: int

    @classmethod
    def of(cls, year: int, month: int) -> "Month":
        """Return the month as the calendar has it."""
        # calendar counts from Monday, so its first day is cron's day before.
        return cls(*calendar.monthrange(year, month))

    def weekday(self, day: int) -> int:
        """Return the day of week of a day, Sunday as 0."""
        return (self.offset + day) % 7


@dataclass(frozen=True, slots=True)
class MonthDay:
    """A day counted from either end of the month, or the weekday (Monday to Friday) nearest to it.

    ``L`` is the end itself, ``L-3`` the third day before it. ``LW`` is the weekday nearest to the
    last day, which makes it the last weekday, because ``W`` never leaves the month.
    """

    number: int
    from_end: bool
    nearest: bool

    def on(self, month: Month) -> int | None:
        """Return the day in ``month``, None when it has no such day."""
        day = month.length - self.number if self.from_end else self.number
        if not 1 <= day <= month.length:
            return None
        return _nearest_weekday(day, month) if self.nearest else day


#: Plain ``L``.
LAST_DAY = MonthDay(0, from_end=True, nearest=False)


@dataclass(frozen=True, slots=True)
class NthWeekday:
    """A day of the week in the first to fifth week of the month, or in the ``LAST`` one it has."""

    weekday: int
    week: int

    def on(self, month: Month) -> int | None:
        """Return the day in ``month``, None when it has no such day."""
        first = 1 + (self.weekday - month.weekday(1)) % 7
        if self.week == LAST:
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
