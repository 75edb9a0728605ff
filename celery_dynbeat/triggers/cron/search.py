"""The search for matching times on the wall clock: by croniter, and by the calendar.

croniter answers what it can say. Its nearest weekday takes no list and moves the 31st to the last
day of a shorter month; it has no ``LW`` and no ``L-3``, and does not mix ``mon#2`` with plain days.
For those it gives the times of day, and the calendar the dates.
"""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Protocol

from croniter import croniter

from celery_dynbeat.triggers.cron.dates import Days, days_in
from celery_dynbeat.triggers.cron.days import LAST, LAST_DAY, NthWeekday
from celery_dynbeat.triggers.cron.fields import Field, Fields

_SECOND = timedelta(seconds=1)
# 29 February falls on a given day of the week after 40 years at the latest (2072 to 2112).
_MAX_YEARS_BETWEEN = 48


class Search(Protocol):
    """Finds the times of the wall clock that an expression names."""

    def first_after(self, wall: datetime) -> datetime:
        """Return the first one strictly after ``wall``, which falls on a second; there is one."""


@dataclass(frozen=True, slots=True)
class CroniterSearch:
    """The times that croniter finds."""

    cron: croniter

    def first_after(self, wall: datetime) -> datetime:
        """Return the first time strictly after ``wall``."""
        # A copy, because a search moves its croniter, and threads share this one.
        found: datetime = copy(self.cron).get_next(datetime, start_time=wall)
        return found


@dataclass(frozen=True, slots=True)
class CalendarSearch:
    """The times of day that ``clock`` finds, on the dates that the calendar names."""

    clock: CroniterSearch
    days: Days
    months: tuple[int, ...]

    def first_after(self, wall: datetime) -> datetime:
        """Return the first time strictly after ``wall``."""
        found = self.clock.first_after(wall)
        day = self._first_from(found.date())
        if day == found.date():
            return found
        return self.clock.first_after(datetime.combine(day, time.min) - _SECOND)

    def _first_from(self, start: date) -> date:
        return next(day for day in self._dates_from(start) if day >= start)

    def _dates_from(self, start: date) -> Iterator[date]:
        for year in range(start.year, start.year + _MAX_YEARS_BETWEEN):
            for month in self.months:
                if (year, month) >= (start.year, start.month):
                    for day in days_in(self.days, year=year, month=month):
                        yield date(year, month, day)


def search(fields: Fields, days: Days) -> Search:
    """Return the search for the times of ``fields`` on ``days``, which must exist."""
    if all(map(_known_to_croniter, days)):
        return CroniterSearch(_croniter(fields, days, fields.month))
    every = Field("*", (), full=True)
    clock = CroniterSearch(_croniter(fields, (every, every), every))
    return CalendarSearch(clock, days, fields.month.values)


def _known_to_croniter(field: Field) -> bool:
    if field.full or not field.rules:
        return True
    if isinstance(field.rules[0], NthWeekday):
        return not field.values
    return set(field.rules) == {LAST_DAY}


def _croniter(fields: Fields, days: Days, month: Field) -> croniter:
    day, weekday = days
    # croniter counts "l" as a day and takes 31 of them for all, unless it sees no "*" beside.
    weekdays = "0,1,2,3,4,5,6" if day.rules and weekday.full else _canonical(weekday)
    texts = [*map(_canonical, (fields.minute, fields.hour, day, month)), weekdays]
    if fields.second is not None:
        texts.append(_canonical(fields.second))
    years = _MAX_YEARS_BETWEEN
    return croniter(" ".join(texts), 0, day_or=False, max_years_between_matches=years)


def _canonical(field: Field) -> str:
    """Write a field as croniter cannot misread it: no ranges, no steps, no names."""
    if field.full:
        return "*"
    items = [str(value) for value in field.values]
    for rule in field.rules:
        if not isinstance(rule, NthWeekday):
            items.append("l")
        elif rule.week == LAST:
            items.append(f"l{rule.weekday}")
        else:
            items.append(f"{rule.weekday}#{rule.week}")
    return ",".join(items)
