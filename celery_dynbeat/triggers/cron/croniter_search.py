"""The search for wall times by croniter, for the expressions that croniter can express.

croniter has no ``LW`` and no ``L-3``, and accepts no list with ``15W``. It moves the 31st to the
last day of a shorter month, and does not combine ``mon#2`` with plain days. ``WallTimes`` finds the
times of such expressions by its own calendar.
"""

from collections.abc import Iterable
from copy import copy
from datetime import datetime

from croniter import croniter

from celery_dynbeat.triggers.cron.calendar_days import LAST_WEEK, MonthDay, NthWeekday
from celery_dynbeat.triggers.cron.dates import MAX_YEARS_BETWEEN, DayFields
from celery_dynbeat.triggers.cron.expression import CronExpression, CronField

_LAST_DAY = MonthDay(0, from_end=True, nearest=False)


class CroniterSearch:
    """The earliest match of several croniters. Threads may share it."""

    __slots__ = ("_croniters",)

    def __init__(self, croniters: Iterable[croniter]) -> None:
        self._croniters = tuple(croniters)

    def first_after(self, wall: datetime) -> datetime:
        """Return the first matching wall time strictly after ``wall``, which is a whole second."""
        # get_next() changes its croniter, so each search uses a copy.
        first: datetime = min(
            copy(each).get_next(datetime, start_time=wall) for each in self._croniters
        )
        return first


def croniter_search(
    expression: CronExpression, day_fields: Iterable[DayFields]
) -> CroniterSearch | None:
    """Return the search of an expression, or None if croniter cannot express its day fields.

    A day matches if one pair of ``day_fields`` matches it.
    """
    pairs = tuple(day_fields)
    if not all(_is_supported(field) for pair in pairs for field in pair):
        return None
    return CroniterSearch(_croniter(expression, pair) for pair in pairs)


def _is_supported(field: CronField) -> bool:
    if field.full or not field.day_rules:
        return True
    if isinstance(field.day_rules[0], NthWeekday):
        return not field.values
    return set(field.day_rules) == {_LAST_DAY}


def _croniter(expression: CronExpression, day_fields: DayFields) -> croniter:
    day, weekday = day_fields
    # Next to "*", croniter reads "l" as one more day and treats 31 days as all days.
    weekdays = "0,1,2,3,4,5,6" if day.day_rules and weekday.full else _canonical(weekday)
    fields = (expression.minute, expression.hour, day, expression.month)
    texts = [*map(_canonical, fields), weekdays]
    if expression.second is not None:
        texts.append(_canonical(expression.second))
    return croniter(" ".join(texts), 0, day_or=False, max_years_between_matches=MAX_YEARS_BETWEEN)


def _canonical(field: CronField) -> str:
    """Write a field as plain values: croniter reads some ranges, steps and names differently."""
    if field.full:
        return "*"
    items = [str(value) for value in field.values]
    for rule in field.day_rules:
        if not isinstance(rule, NthWeekday):
            items.append("l")
        elif rule.week == LAST_WEEK:
            items.append(f"l{rule.weekday}")
        else:
            items.append(f"{rule.weekday}#{rule.week}")
    return ",".join(items)
