"""Triggers in words. A shape that has no sentence of its own is named field by field."""

from collections.abc import Sequence
from datetime import timedelta

from celery_dynbeat.triggers.fields import Field, Fields

# Looked up by number, Sunday as 7; the first of each is never asked for.
_WEEKDAYS = ("", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("", "January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_NUMBERS = tuple(str(number) for number in range(60))
_ORDINALS = {1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 5: "5th"}
_UNITS = (("day", 86400), ("hour", 3600), ("minute", 60))
_MOST_TIMES = 6
_SHORTEST_SPAN = 3


def describe_duration(interval: timedelta) -> str:
    """Say a positive duration: ``every 5 minutes``, ``every hour``, ``every 1 hour 30 minutes``."""
    seconds = interval // timedelta(seconds=1)
    parts = []
    for unit, size in _UNITS:
        count, seconds = divmod(seconds, size)
        if count:
            parts.append((str(count), unit))
    fraction = f".{interval.microseconds:06}".rstrip("0") if interval.microseconds else ""
    if seconds or fraction:
        parts.append((f"{seconds}{fraction}", "second"))
    if len(parts) == 1 and parts[0][0] == "1":
        return f"every {parts[0][1]}"
    words = (f"{count} {unit}" if count == "1" else f"{count} {unit}s" for count, unit in parts)
    return f"every {' '.join(words)}"


def describe_cron(fields: Fields, *, day_or: bool) -> str:
    """Say a cron expression, without its zone."""
    times, dates = _times_of_day(fields), _dates(fields, day_or=day_or)
    if times is not None:
        return f"at {times}, {dates}" if dates else f"at {times} every day"
    clock = _rhythm(fields) or _named_clock(fields)
    return f"{clock}, {dates}" if dates else clock


def _times_of_day(fields: Fields) -> str | None:
    """Return ``09:00 and 17:30`` when the expression has few times a day, else None."""
    seconds = _seconds(fields)
    hours, minutes = fields.hour.values, fields.minute.values
    if len(hours) * len(minutes) * max(len(seconds), 1) > _MOST_TIMES:
        return None
    clocks = [f"{hour:02}:{minute:02}" for hour in hours for minute in minutes]
    if seconds:
        clocks = [f"{clock}:{second:02}" for clock in clocks for second in seconds]
    return _listed(clocks)


def _rhythm(fields: Fields) -> str | None:
    """Return ``every 5 minutes`` and the like where the rhythm is even, else None.

    Not for fixed times, whose rhythm breaks when the clock goes back.
    """
    if not fields.wildcard:
        return None
    minutes, seconds = _even_step(fields.minute), fields.second and _even_step(fields.second)
    if not _seconds(fields) and fields.minute.values == (0,):
        return "every hour, on the hour" if fields.hour.full else None
    if not _seconds(fields) and minutes:
        rhythm = describe_duration(timedelta(minutes=minutes))
    elif fields.minute.full and seconds:
        rhythm = describe_duration(timedelta(seconds=seconds))
    else:
        return None
    return rhythm if fields.hour.full else f"{rhythm} during {_part('hour', fields.hour)}"


def _even_step(field: Field) -> int | None:
    """Return n if the field is every n-th of sixty from 0 on, without a shorter last step."""
    step = 60 // len(field.values)
    return step if field.values == tuple(range(0, 60, step)) and 60 % step == 0 else None


def _named_clock(fields: Fields) -> str:
    parts = [_part("minute", fields.minute), _part("hour", fields.hour)]
    if fields.second and _seconds(fields):
        parts.insert(0, _part("second", fields.second))
    return f"at {' of '.join(parts)}"


def _seconds(fields: Fields) -> tuple[int, ...]:
    """Return the seconds, nothing if the expression fires on the minute."""
    return () if fields.second is None or fields.second.values == (0,) else fields.second.values


def _part(unit: str, field: Field) -> str:
    if field.full:
        return f"every {unit}"
    return f"{unit}{_plural(field.values)} {_spans(field.values, _NUMBERS)}"


def _dates(fields: Fields, *, day_or: bool) -> str:
    either = day_or and not (fields.day.starred or fields.weekday.starred)
    any_day, any_weekday = fields.day.full, fields.weekday.full
    if (any_day and any_weekday) or (either and (any_day or any_weekday)):
        said = ""
    elif any_day:
        said = _on(_weekdays(fields.weekday))
    elif any_weekday:
        said = _monthdays(fields.day)
    elif either:
        said = f"{_monthdays(fields.day)} or {_on(_weekdays(fields.weekday))}"
    else:
        said = f"{_monthdays(fields.day)}, only if it is {_weekdays(fields.weekday, last='or')}"
    if fields.month.full:
        return said
    return f"{said or 'every day'}, in {_spans(fields.month.values, _MONTHS)}"


def _monthdays(day: Field) -> str:
    numbers = f"day{_plural(day.values)} {_spans(day.values, _NUMBERS)}" if day.values else ""
    last = "the last day" if day.last_day else ""
    return f"on {' and '.join(part for part in (numbers, last) if part)} of the month"


def _weekdays(weekday: Field, *, last: str = "and") -> str:
    if weekday.nth:
        names = [f"the {_ORDINALS[week]} {_WEEKDAYS[day or 7]}" for day, week in weekday.nth]
        return f"{_listed(names, last=last)} of the month"
    # Monday first, so that a weekend is Saturday and Sunday.
    return _spans(tuple(sorted(day or 7 for day in weekday.values)), _WEEKDAYS, last=last)


def _on(weekdays: str) -> str:
    return weekdays if " to " in weekdays else f"on {weekdays}"


def _spans(values: tuple[int, ...], names: Sequence[str], *, last: str = "and") -> str:
    """List values by name, three or more in a row as ``9 to 17``."""
    said, start = [], 0
    while start < len(values):
        stop = start
        while stop + 1 < len(values) and values[stop + 1] == values[stop] + 1:
            stop += 1
        if stop - start + 1 >= _SHORTEST_SPAN:
            said.append(f"{names[values[start]]} to {names[values[stop]]}")
        else:
            said += [names[value] for value in values[start : stop + 1]]
        start = stop + 1
    return _listed(said, last=last)


def _listed(names: list[str], *, last: str = "and") -> str:
    return f" {last} ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def _plural(values: tuple[int, ...]) -> str:
    return "s" if len(values) > 1 else ""
