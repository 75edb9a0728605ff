"""Cron expressions in words. An unusual expression is described field by field."""

from collections.abc import Sequence
from datetime import timedelta

from celery_dynbeat.common.text import (
    MONTHS,
    WEEKDAYS,
    describe_interval,
    join_words,
    ordinal,
    plural,
)
from celery_dynbeat.triggers.cron.expression import (
    DAY,
    HOUR,
    LAST_WEEK,
    MINUTE,
    MONTH,
    SECOND,
    WEEKDAY,
    CronExpression,
    CronField,
    FieldRange,
    HashedItem,
    MonthDay,
    NthWeekday,
)

# By number, as the fields count: Sunday is 7 here, so that a weekend is Saturday and Sunday.
_WEEKDAY_NAMES = ("", *WEEKDAYS)
_MONTH_NAMES = ("", *MONTHS)
_NUMBERS = tuple(str(number) for number in range(60))
_MAX_TIMES = 6
_MIN_SPAN = 3


def describe_cron(expression: CronExpression, *, day_or: bool) -> str:
    """Return a cron expression in words, without its zone."""
    times, dates = _times_of_day(expression), _describe_dates(expression, day_or=day_or)
    if times is not None:
        return f"at {times}, {dates}" if dates else f"at {times} every day"
    clock = _rhythm(expression) or _describe_fields(expression)
    return f"{clock}, {dates}" if dates else clock


def _times_of_day(expression: CronExpression) -> str | None:
    """Return ``09:00 and 17:30``, or None if there are more than 6 times a day."""
    seconds = _seconds_off_minute(expression)
    hours, minutes = expression.hour.values, expression.minute.values
    clock_fields = (expression.hour, expression.minute, expression.second)
    hashed = any(field and field.hashed_items for field in clock_fields)
    if hashed or len(hours) * len(minutes) * max(len(seconds), 1) > _MAX_TIMES:
        return None
    clocks = [f"{hour:02}:{minute:02}" for hour in hours for minute in minutes]
    if seconds:
        clocks = [f"{clock}:{second:02}" for clock in clocks for second in seconds]
    return join_words(clocks)


def _rhythm(expression: CronExpression) -> str | None:
    """Return a text such as ``every 5 minutes`` for equal intervals, or else None.

    Fixed times have no equal intervals, because their intervals differ when the clock goes back.
    """
    minute, second = expression.minute, expression.second
    if minute.hashed_items or (second and second.hashed_items) or not expression.wildcard:
        return None
    off_minute = _seconds_off_minute(expression)
    minutes, seconds = _even_step(minute), second and _even_step(second)
    if not off_minute and minute.values == (0,):
        return "every hour, on the hour" if expression.hour.full else None
    if not off_minute and minutes:
        rhythm = describe_interval(timedelta(minutes=minutes))
    elif minute.full and seconds:
        rhythm = describe_interval(timedelta(seconds=seconds))
    else:
        return None
    return (
        rhythm
        if expression.hour.full
        else f"{rhythm} during {_describe_field(HOUR, expression.hour)}"
    )


def _even_step(field: CronField) -> int | None:
    """Return n if the field is every n-th value of sixty, from 0 on, and n divides sixty."""
    step = 60 // len(field.values)
    return step if field.values == tuple(range(0, 60, step)) and 60 % step == 0 else None


def _describe_fields(expression: CronExpression) -> str:
    parts = [_describe_field(MINUTE, expression.minute), _describe_field(HOUR, expression.hour)]
    second = expression.second
    if second and (_seconds_off_minute(expression) or second.hashed_items):
        parts.insert(0, _describe_field(SECOND, second))
    return f"at {' of '.join(parts)}"


def _seconds_off_minute(expression: CronExpression) -> tuple[int, ...]:
    """Return the seconds, nothing if the expression fires only on whole minutes."""
    second = expression.second
    return () if second is None or second.values == (0,) else second.values


def _describe_field(field_range: FieldRange, field: CronField) -> str:
    unit = field_range.name
    if field.full:
        return f"every {unit}"
    words = [f"{unit}{plural(len(field.values))} {_spans(field.values)}"] if field.values else []
    return join_words(
        [*words, *(_describe_hashed(item, field_range, unit) for item in field.hashed_items)]
    )


def _describe_dates(expression: CronExpression, *, day_or: bool) -> str:
    day, weekday, month = expression.day, expression.weekday, expression.month
    either = day_or and not (day.starred or weekday.starred)
    if (day.full and weekday.full) or (either and (day.full or weekday.full)):
        words = ""
    elif day.full:
        words = _on(_describe_weekdays(weekday))
    elif weekday.full:
        words = _describe_month_days(day)
    elif either:
        words = f"{_describe_month_days(day)} or {_on(_describe_weekdays(weekday))}"
    else:
        words = (
            f"{_describe_month_days(day)}, only if it is {_describe_weekdays(weekday, last='or')}"
        )
    if month.full:
        return words
    months = _span_list(month.values, _MONTH_NAMES)
    months += [_describe_hashed(item, MONTH, "month", _MONTH_NAMES) for item in month.hashed_items]
    return f"{words or 'every day'}, in {join_words(months)}"


def _describe_month_days(day: CronField) -> str:
    words = [f"day{plural(len(day.values))} {_spans(day.values)}"] if day.values else []
    words += [_describe_month_day(rule) for rule in day.day_rules if isinstance(rule, MonthDay)]
    words += [_describe_hashed(item, DAY, "day") for item in day.hashed_items]
    # "3 days before the last day" takes no preposition.
    preposition = "" if words[0][0].isdigit() else "on "
    return f"{preposition}{join_words(words)} of the month"


def _describe_month_day(rule: MonthDay) -> str:
    if rule.from_end and rule.number == 0:
        return "the last weekday" if rule.nearest else "the last day"
    words = f"day {rule.number}"
    if rule.from_end:
        words = f"{rule.number} day{plural(rule.number)} before the last day"
    return f"the weekday nearest to {words}" if rule.nearest else words


def _describe_weekdays(weekday: CronField, *, last: str = "and") -> str:
    words = _span_list(tuple(sorted(day or 7 for day in weekday.values)), _WEEKDAY_NAMES)
    words += [
        _describe_hashed(item, WEEKDAY, "day of the week", _WEEKDAY_NAMES)
        for item in weekday.hashed_items
    ]
    nth = [
        _describe_nth_weekday(rule) for rule in weekday.day_rules if isinstance(rule, NthWeekday)
    ]
    return f"{join_words([*words, *nth], last=last)}{' of the month' if nth else ''}"


def _describe_nth_weekday(rule: NthWeekday) -> str:
    week = "last" if rule.week == LAST_WEEK else ordinal(rule.week)
    return f"the {week} {_WEEKDAY_NAMES[rule.weekday or 7]}"


def _on(weekdays: str) -> str:
    return weekdays if " to " in weekdays and weekdays[0].isupper() else f"on {weekdays}"


def _describe_hashed(
    item: HashedItem, field_range: FieldRange, unit: str, names: Sequence[str] = _NUMBERS
) -> str:
    """Return an ``H`` in words, as it is without a key."""
    first, last = (
        names[value or 7] if field_range is WEEKDAY else names[value]
        for value in (item.choices[0], item.choices[-1])
    )
    span = f" from {first} to {last}" if len(item.choices) < field_range.size else ""
    if item.step < len(item.choices):
        return f"every {ordinal(item.step)} {unit}{span} (start picked per schedule)"
    return f"{'an' if field_range is HOUR else 'a'} {unit}{span} (picked per schedule)"


def _spans(values: tuple[int, ...]) -> str:
    return join_words(_span_list(values, _NUMBERS))


def _span_list(values: tuple[int, ...], names: Sequence[str]) -> list[str]:
    """Return the names of values, where three or more in a row become ``9 to 17``."""
    words, start = [], 0
    while start < len(values):
        stop = start
        while stop + 1 < len(values) and values[stop + 1] == values[stop] + 1:
            stop += 1
        if stop - start + 1 >= _MIN_SPAN:
            words.append(f"{names[values[start]]} to {names[values[stop]]}")
        else:
            words += [names[value] for value in values[start : stop + 1]]
        start = stop + 1
    return words
