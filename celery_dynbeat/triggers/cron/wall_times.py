"""The dates and wall times that a cron expression matches, without regard to zones."""

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace
from datetime import date, datetime, timedelta
from functools import lru_cache
from itertools import product
from math import prod

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.cron.expression import (
    CronExpression,
    CronField,
    Month,
    parse_expression,
    resolve_hashes,
)

#: 29 February falls on its day of the week again after 40 years at the latest (2072 to 2112).
MAX_YEARS_BETWEEN = 48
#: In these years every date, including 29 February, falls on every day of the week.
_EVERY_CALENDAR = range(2001, 2029)
_ANY = CronField("*", (), full=True)
# This does not match the h of "thu".
_HASHED = re.compile(r"\bh")
_SECOND, _MICROSECOND = timedelta(seconds=1), timedelta(microseconds=1)
#: The day of month and the day of week.
DayFields = tuple[CronField, CronField]


class WallTimes:
    """The matching times of day on the matching days. Threads may share it."""

    __slots__ = (
        "_clock",
        "_day_fields",
        "_days",
        "_months",
        "_times_per_day",
        "wildcard",
    )

    def __init__(self, expression: CronExpression, *, day_or: bool) -> None:
        #: Whether the expression follows elapsed time around a clock change.
        self.wildcard = expression.wildcard
        seconds = (0,) if expression.second is None else expression.second.values
        self._clock = (expression.hour.values, expression.minute.values, seconds)
        self._times_per_day = prod(map(len, self._clock))
        self._months = expression.month.values
        self._day_fields: tuple[DayFields, ...] = possible_days(expression, day_or=day_or)
        # The days of each kind of month, of which there are 28, as bits: the 1st is bit 1.
        self._days: dict[Month, int] = {}

    def first_after(self, wall: datetime) -> datetime:
        """Return the first matching wall time strictly after ``wall``.

        There is always such a time.
        """
        start = wall.replace(microsecond=0) + _SECOND
        day = self._first_day(start.year, start.month, start.day)
        rank = self._times_before(start) if day == start.date() else 0
        if rank == self._times_per_day:
            day, rank = self._first_day(start.year, start.month, start.day + 1), 0
        return self._time_of(day, rank)

    def first_from(self, wall: datetime) -> datetime:
        """Return the first matching wall time at or after ``wall``."""
        return self.first_after(wall - _MICROSECOND)

    def count_between(self, start: datetime, stop: datetime) -> int:
        """Count the matching wall times in ``[start, stop)``. Both are whole seconds."""
        first, last = start.year * 12 + start.month - 1, stop.year * 12 + stop.month - 1
        days = 0
        for number in range(first, last + 1):
            bits = self._days_of(number)
            if number == last:
                bits &= (1 << stop.day) - 1
            if number == first:
                bits = bits >> start.day << start.day
            days += bits.bit_count()
        # The last day counts up to ``stop``, and the first day from ``start``.
        count = days * self._times_per_day
        if self._days_of(last) >> stop.day & 1:
            count += self._times_before(stop)
        if self._days_of(first) >> start.day & 1:
            count -= self._times_before(start)
        return count

    def _first_day(self, year: int, month: int, day: int) -> date:
        """Return the first matching date from a day on, which may lie past the end of its month."""
        for number in (later for later in self._months if later >= month):
            bits = self._days_of(year * 12 + number - 1)
            if number == month:
                bits = bits >> day << day
            if bits:
                return _lowest(year, number, bits)
        # The months that match, and no other: 29 February can be 40 years away.
        for later in range(year + 1, year + MAX_YEARS_BETWEEN):
            for number in self._months:
                if bits := self._days_of(later * 12 + number - 1):
                    return _lowest(later, number, bits)
        raise AssertionError("possible_days finds expressions without dates")

    def _days_of(self, number: int) -> int:
        """Return the matching days of a month as bits. Months count from January of year 0."""
        if number % 12 + 1 not in self._months:
            return 0
        month = Month.of(number // 12, number % 12 + 1)
        bits = self._days.get(month)
        if bits is None:
            days = set[int]().union(*(days_in(fields, month) for fields in self._day_fields))
            bits = self._days[month] = sum(1 << day for day in days)
        return bits

    def _times_before(self, wall: datetime) -> int:
        """Return the number of matching times of day before the time of ``wall``."""
        rank, exact = 0, True
        for values, value in zip(self._clock, (wall.hour, wall.minute, wall.second), strict=True):
            place = bisect_left(values, value) if exact else 0
            rank = rank * len(values) + place
            exact = exact and value in values[place : place + 1]
        return rank

    def _time_of(self, day: date, rank: int) -> datetime:
        """Return the matching wall time with ``rank`` other times before it on its day."""
        hours, minutes, seconds = self._clock
        rank, second = divmod(rank, len(seconds))
        hour, minute = divmod(rank, len(minutes))
        clock = hours[hour], minutes[minute], seconds[second]
        return datetime(day.year, day.month, day.day, *clock)  # noqa: DTZ001 - a wall time


def _lowest(year: int, month: int, bits: int) -> date:
    return date(year, month, (bits & -bits).bit_length() - 1)


@lru_cache(maxsize=4096)
def wall_times(expression: str, *, day_or: bool) -> WallTimes:
    """Return the wall times of an expression. Each ``H`` gets the values of the key "".

    Raises ``InvalidTriggerError`` when no date can ever match, for any key.
    """
    parsed = parse_expression(expression)
    if parsed.hashed:
        require_dates(parsed, day_or=day_or)
        return wall_times(resolve_hashes("", parsed), day_or=day_or)
    return WallTimes(parsed, day_or=day_or)


def days_in(fields: DayFields, month: Month) -> set[int]:
    """Return the days of a month on which both the day of month and the day of week match."""
    day, weekday = fields
    days = set(range(1, month.length + 1)) if day.full else _month_days(day, month)
    if weekday.full:
        return days
    nth = {rule.on(month) for rule in weekday.day_rules}
    return {day for day in days if month.weekday(day) in weekday.values or day in nth}


def possible_days(expression: CronExpression, *, day_or: bool) -> tuple[DayFields, ...]:
    """Return pairs of day fields, one of which must match. Pairs that never match are left out.

    A day matches when both day fields match. If ``day_or``, and neither field begins with ``*``,
    one matching field is enough ("restricted" fields in crontab(5)).

    Raises ``InvalidTriggerError`` when no date can ever match.
    """
    both = (expression.day, expression.weekday)
    either = day_or and not any(field.starred for field in both)
    pairs: tuple[DayFields, ...] = (both,)
    if either:
        pairs = ((expression.day, _ANY), (_ANY, expression.weekday))
    possible = tuple(pair for pair in pairs if _exist(pair, months=expression.month.values))
    if not possible:
        raise _no_such_date(expression)
    return possible


def require_dates(expression: CronExpression, *, day_or: bool) -> None:
    """Raise ``InvalidTriggerError`` if some key selects dates for an ``H`` that never match."""
    days, months, weekdays = map(_outcomes, (expression.day, expression.month, expression.weekday))
    if not expression.day.day_rules:
        # One weekday is enough: in some year a date falls on any of them.
        weekdays = weekdays[:1]
    for day, month, weekday in product(days, months, weekdays):
        possible_days(replace(expression, day=day, month=month, weekday=weekday), day_or=day_or)


def _exist(fields: DayFields, *, months: Iterable[int]) -> bool:
    return any(
        days_in(fields, Month.of(year, month)) for year, month in product(_EVERY_CALENDAR, months)
    )


def _month_days(day: CronField, month: Month) -> set[int]:
    numbers = {number for number in day.values if number <= month.length}
    ruled = {rule.on(month) for rule in day.day_rules}
    return numbers | {number for number in ruled if number is not None}


def _outcomes(field: CronField) -> list[CronField]:
    """Return the fields that keys can select, with as few values as possible."""
    plain = replace(field, hashed_items=())
    if not field.hashed_items or field.values or field.day_rules:
        return [plain]
    outcomes = field.hashed_items[0].outcomes
    return [replace(plain, values=tuple(sorted(values))) for values in outcomes]


def _no_such_date(expression: CronExpression) -> InvalidTriggerError:
    fields = (expression.day, expression.month, expression.weekday)
    day, month, weekday = (field.text for field in fields)
    never, hint = "never occur", "choose days that exist"
    if _HASHED.search(f"{day} {month} {weekday}"):
        never, hint = "do not always occur", "give H a range of days that exist, such as H(1-28)"
    return InvalidTriggerError(
        f"no such date: day of month {shorten(day)}, month {shorten(month)} and day of week"
        f" {shorten(weekday)} {never} together; {hint}",
        field="day of month",
    )
