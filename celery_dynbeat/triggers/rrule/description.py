"""Recurrences in words. A rule that has no description is shown as text."""

from collections.abc import Sequence
from datetime import datetime

from celery_dynbeat.common.text import (
    MONTHS,
    WEEKDAYS,
    describe_unit,
    join_words,
    ordinal,
    plural,
)
from celery_dynbeat.triggers.rrule.text import Freq, Recurrence, RecurrenceRule, format_rule

_UNITS = ("year", "month", "week", "day", "hour", "minute", "second")
_WORKDAYS, _ALL_DAYS = tuple(range(5)), tuple(range(7))
_MAX_TIMES = 6


def describe_recurrence(recurrence: Recurrence) -> str:
    """Return a recurrence in words, with its dates and its zone."""
    start = recurrence.dtstart
    words = "; and ".join(_describe_rule(rule, start) for rule in recurrence.rules)
    for moments, label in ((recurrence.rdates, "and on"), (recurrence.exdates, "except")):
        if moments:
            words += f", {label} {len(moments)} date{plural(len(moments))}"
    return f"{words}, {recurrence.zone or 'UTC'}"


def _describe_rule(rule: RecurrenceRule, start: datetime | None) -> str:
    dates, times = _describe_dates(rule, start), _describe_times(rule, start)
    since = "" if start is None else f" from {start:%Y-%m-%d}"
    if dates is None or times is None:
        return f"by the rule {format_rule(rule)}{since}"
    words = f"{dates}{times}{since}"
    if rule.count is not None:
        words += f", {rule.count} time{plural(rule.count)}"
    if rule.until is not None:
        zone = "" if rule.until.tzinfo is None else " UTC"
        words += f", until {rule.until:%Y-%m-%d %H:%M:%S}{zone}"
    return words


def _describe_dates(rule: RecurrenceRule, start: datetime | None) -> str | None:
    """Return ``every 2 weeks on Monday``, or None if there are no words for it."""
    if rule.byweekno or rule.byyearday:
        return None
    if rule.freq is Freq.YEARLY:
        return _describe_yearly(rule, start)
    if rule.freq is Freq.MONTHLY:
        days = _describe_month_days(rule, start)
        months = f", in {_month_names(rule.bymonth)}" if rule.bymonth else ""
        return days and f"{days} of {_describe_interval(rule)}{months}"
    if rule.bysetpos or rule.bymonth or rule.bymonthday:
        return None
    weekdays = rule.byday
    if rule.freq is Freq.WEEKLY and start and not weekdays:
        weekdays = ((start.weekday(), 0),)
    return (
        f"{_describe_interval(rule)} on {_describe_weekdays(weekdays)}"
        if weekdays
        else _describe_interval(rule)
    )


def _describe_yearly(rule: RecurrenceRule, start: datetime | None) -> str | None:
    months = rule.bymonth
    if start and not (months or rule.byday or rule.bymonthday):
        months = (start.month,)
    # BYSETPOS counts within the year: several months have one first Monday together.
    if rule.bysetpos and len(months) > 1:
        return None
    days = _describe_month_days(rule, start)
    return (
        f"{days} of {_month_names(months)}, {_describe_interval(rule)}" if days and months else None
    )


def _month_names(months: Sequence[int]) -> str:
    return join_words([MONTHS[month - 1] for month in months])


def _describe_month_days(rule: RecurrenceRule, start: datetime | None) -> str | None:
    """Return ``on the last Friday``, or None if there are no words for it."""
    days, weekdays = rule.bymonthday, rule.byday
    if start and not days and not weekdays:
        days = (start.day,)
    if weekdays and not days:
        return _describe_numbered_weekdays(rule)
    if not days or weekdays or rule.bysetpos:
        return None
    from_start = [str(day) for day in days if day > 0]
    named = [f"day{plural(len(from_start))} {join_words(from_start)}"] if from_start else []
    named += [f"the {_describe_nth(day)} day" for day in days if day < 0]
    return f"on {join_words(named)}"


def _describe_numbered_weekdays(rule: RecurrenceRule) -> str | None:
    weekdays = tuple(day for day, _ in rule.byday)
    if rule.bysetpos:
        names = {_WORKDAYS: "working day", _ALL_DAYS: "day"}
        name = names.get(weekdays) or (WEEKDAYS[weekdays[0]] if len(weekdays) == 1 else None)
        if name is None or any(number for _, number in rule.byday) or len(_clock(rule)) > 1:
            return None
        return f"on the {join_words([_describe_nth(at) for at in rule.bysetpos])} {name}"
    if not all(number for _, number in rule.byday):
        return f"on {_describe_weekdays(rule.byday)}" if not any(n for _, n in rule.byday) else None
    words = [f"the {_describe_nth(number)} {WEEKDAYS[day]}" for day, number in rule.byday]
    return f"on {join_words(words)}"


def _describe_times(rule: RecurrenceRule, start: datetime | None) -> str | None:
    """Return `` at 09:00``, "" for a unit shorter than a day, or None for more than 6 times."""
    if rule.freq >= Freq.HOURLY:
        return None if rule.byhour or rule.byminute or rule.bysecond else ""
    if start is None and rule.byhour and not rule.byminute:
        # The minute comes from DTSTART, which is not known yet.
        return None
    clock = _clock(rule, start)
    if not clock and (rule.byminute or rule.bysecond):
        return None
    if rule.bysetpos and len(clock) > 1:
        return None
    if len(clock) > _MAX_TIMES:
        return None
    return f" at {join_words(clock)}" if clock else ""


def _clock(rule: RecurrenceRule, start: datetime | None = None) -> list[str]:
    """Return the times of day, none if they depend on a DTSTART that is missing."""
    if start is None and not rule.byhour:
        return []
    hours = rule.byhour or ((start.hour,) if start else (0,))
    minutes = rule.byminute or ((start.minute,) if start else (0,))
    seconds = rule.bysecond or ((start.second,) if start else (0,))
    if len(hours) * len(minutes) * len(seconds) > _MAX_TIMES:
        return [""] * (_MAX_TIMES + 1)
    shown = [(hour, minute, second) for hour in hours for minute in minutes for second in seconds]
    return [f"{h:02}:{m:02}{f':{s:02}' if any(seconds) else ''}" for h, m, s in shown]


def _describe_interval(rule: RecurrenceRule) -> str:
    return describe_unit(_UNITS[rule.freq], rule.interval)


def _describe_weekdays(days: Sequence[tuple[int, int]]) -> str:
    numbers = tuple(day for day, _ in days)
    if numbers == _WORKDAYS:
        return "Monday to Friday"
    return join_words([WEEKDAYS[day] for day in numbers])


def _describe_nth(number: int) -> str:
    if number == -1:
        return "last"
    return ordinal(number) if number > 0 else f"{ordinal(-number)} last"
