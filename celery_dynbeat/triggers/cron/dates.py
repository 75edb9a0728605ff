"""The dates that the day fields of a cron expression name, and whether there are any at all."""

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import product

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.cron.days import Month
from celery_dynbeat.triggers.cron.fields import Field, Fields

#: Every date falls on every day of the week in some of these years, 29 February too.
_EVERY_CALENDAR = range(2001, 2029)
_ANY = Field("*", (), full=True)
# Not the h of "thu".
_HASHED = re.compile(r"\bh")

Days = tuple[Field, Field]


def days_in(days: Days, *, year: int, month: int) -> list[int]:
    """Return the days of a month on which both the day of month and the day of week match."""
    day, weekday = days
    shape = Month.of(year, month)
    named = range(1, shape.length + 1) if day.full else _monthdays(day, shape)
    if weekday.full:
        return sorted(named)
    nth = {rule.on(shape) for rule in weekday.rules}
    return sorted(day for day in named if shape.weekday(day) in weekday.values or day in nth)


def possible_days(fields: Fields, *, day_or: bool) -> tuple[Days, ...]:
    """Return the pairs of day fields of which one must match; those that never do are left out.

    A day matches when both day fields do, as with the rest; only if neither begins with ``*``,
    and ``day_or``, is one of the two enough (crontab(5), on "restricted" fields).

    Raises ``InvalidTriggerError`` when no date can ever match.
    """
    both = (fields.day, fields.weekday)
    either = day_or and not any(field.starred for field in both)
    pairs: tuple[Days, ...] = ((fields.day, _ANY), (_ANY, fields.weekday)) if either else (both,)
    possible = tuple(days for days in pairs if _exist(days, months=fields.month.values))
    if not possible:
        raise _no_such_date(fields)
    return possible


def require_dates(fields: Fields, *, day_or: bool) -> None:
    """Raise ``InvalidTriggerError`` when a key could pick dates for an ``H`` that never match."""
    days, months, weekdays = map(_outcomes, (fields.day, fields.month, fields.weekday))
    if not fields.day.rules:
        # One stands for all: a date falls on each day of the week in some year.
        weekdays = weekdays[:1]
    for day, month, weekday in product(days, months, weekdays):
        possible_days(replace(fields, day=day, month=month, weekday=weekday), day_or=day_or)


def _exist(days: Days, *, months: Iterable[int]) -> bool:
    return any(
        days_in(days, year=year, month=month) for year, month in product(_EVERY_CALENDAR, months)
    )


def _monthdays(day: Field, shape: Month) -> set[int]:
    named = {number for number in day.values if number <= shape.length}
    ruled = {rule.on(shape) for rule in day.rules}
    return named | {number for number in ruled if number is not None}


def _outcomes(field: Field) -> list[Field]:
    """Return what a field may come to, at the least: more items only add to it."""
    plain = replace(field, picks=())
    if not field.picks or field.values or field.rules:
        return [plain]
    outcomes = field.picks[0].outcomes
    return [replace(plain, values=tuple(sorted(values))) for values in outcomes]


def _no_such_date(fields: Fields) -> InvalidTriggerError:
    day, month, weekday = (field.text for field in (fields.day, fields.month, fields.weekday))
    never, cure = "never come", "choose days that exist"
    if _HASHED.search(f"{day} {month} {weekday}"):
        never, cure = "do not always come", "give H a range of days that exist, such as H(1-28)"
    return InvalidTriggerError(
        f"no such date: day of month {shorten(day)}, month {shorten(month)} and day of week"
        f" {shorten(weekday)} {never} together; {cure}",
        field="day of month",
    )
