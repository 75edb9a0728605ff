"""The dates that the day fields of a cron expression match, and whether there are any."""

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import product

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.cron.calendar_days import Month
from celery_dynbeat.triggers.cron.expression import CronExpression, CronField

#: 29 February falls on a given day of the week after 40 years at the latest (2072 to 2112).
MAX_YEARS_BETWEEN = 48
#: In these years every date falls on every day of the week, 29 February too.
_EVERY_CALENDAR = range(2001, 2029)
_ANY = CronField("*", (), full=True)
# Not the h of "thu".
_HASHED = re.compile(r"\bh")

#: The day of month and the day of week.
DayFields = tuple[CronField, CronField]


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
