"""Cron expressions in words. A shape that has no sentence of its own is named field by field."""

from collections.abc import Sequence
from datetime import timedelta

from celery_dynbeat.triggers.cron.days import LAST, MonthDay, NthWeekday
from celery_dynbeat.triggers.cron.domains import DAY, HOUR, MINUTE, MONTH, SECOND, WEEKDAY, Domain
from celery_dynbeat.triggers.cron.fields import Field, Fields
from celery_dynbeat.triggers.cron.items import Pick
from celery_dynbeat.triggers.words import describe_duration

# Looked up by number, Sunday as 7; the first of each is never asked for.
_WEEKDAYS = ("", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("", "January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_NUMBERS = tuple(str(number) for number in range(60))
_ENDINGS = {1: "st", 2: "nd", 3: "rd"}
_TEENS = range(10, 20)
_MOST_TIMES = 6
_SHORTEST_SPAN = 3


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
    picked = fields.hour.picks or fields.minute.picks or (fields.second and fields.second.picks)
    if picked or len(hours) * len(minutes) * max(len(seconds), 1) > _MOST_TIMES:
        return None
    clocks = [f"{hour:02}:{minute:02}" for hour in hours for minute in minutes]
    if seconds:
        clocks = [f"{clock}:{second:02}" for clock in clocks for second in seconds]
    return _listed(clocks)


def _rhythm(fields: Fields) -> str | None:
    """Return ``every 5 minutes`` and the like where the rhythm is even, else None.

    Not for fixed times, whose rhythm breaks when the clock goes back.
    """
    picked = fields.minute.picks or (fields.second and fields.second.picks)
    if picked or not fields.wildcard:
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
    return rhythm if fields.hour.full else f"{rhythm} during {_part(HOUR, fields.hour)}"


def _even_step(field: Field) -> int | None:
    """Return n if the field is every n-th of sixty from 0 on, without a shorter last step."""
    step = 60 // len(field.values)
    return step if field.values == tuple(range(0, 60, step)) and 60 % step == 0 else None


def _named_clock(fields: Fields) -> str:
    parts = [_part(MINUTE, fields.minute), _part(HOUR, fields.hour)]
    if fields.second and (_seconds(fields) or fields.second.picks):
        parts.insert(0, _part(SECOND, fields.second))
    return f"at {' of '.join(parts)}"


def _seconds(fields: Fields) -> tuple[int, ...]:
    """Return the seconds, nothing if the expression fires on the minute."""
    return () if fields.second is None or fields.second.values == (0,) else fields.second.values


def _part(domain: Domain, field: Field) -> str:
    unit = domain.name
    if field.full:
        return f"every {unit}"
    said = [f"{unit}{_plural(field.values)} {_spans(field.values)}"] if field.values else []
    return _listed([*said, *(_picked(pick, domain, unit) for pick in field.picks)])


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
    months = _span_list(fields.month.values, _MONTHS)
    months += [_picked(pick, MONTH, "month", _MONTHS) for pick in fields.month.picks]
    return f"{said or 'every day'}, in {_listed(months)}"


def _monthdays(day: Field) -> str:
    said = [f"day{_plural(day.values)} {_spans(day.values)}"] if day.values else []
    said += [_monthday(rule) for rule in day.rules if isinstance(rule, MonthDay)]
    said += [_picked(pick, DAY, "day") for pick in day.picks]
    # "3 days before the last day" stands without.
    preposition = "" if said[0][0].isdigit() else "on "
    return f"{preposition}{_listed(said)} of the month"


def _monthday(rule: MonthDay) -> str:
    if rule.from_end and rule.number == 0:
        return "the last weekday" if rule.nearest else "the last day"
    said = f"day {rule.number}"
    if rule.from_end:
        said = f"{rule.number} day{'s' if rule.number > 1 else ''} before the last day"
    return f"the weekday nearest to {said}" if rule.nearest else said


def _weekdays(weekday: Field, *, last: str = "and") -> str:
    # Monday first, so that a weekend is Saturday and Sunday.
    said = _span_list(tuple(sorted(day or 7 for day in weekday.values)), _WEEKDAYS)
    said += [_picked(pick, WEEKDAY, "day of the week", _WEEKDAYS) for pick in weekday.picks]
    nth = [_nth_weekday(rule) for rule in weekday.rules if isinstance(rule, NthWeekday)]
    return f"{_listed([*said, *nth], last=last)}{' of the month' if nth else ''}"


def _nth_weekday(rule: NthWeekday) -> str:
    week = "last" if rule.week == LAST else _ordinal(rule.week)
    return f"the {week} {_WEEKDAYS[rule.weekday or 7]}"


def _on(weekdays: str) -> str:
    return weekdays if " to " in weekdays and weekdays[0].isupper() else f"on {weekdays}"


def _picked(pick: Pick, domain: Domain, unit: str, names: Sequence[str] = _NUMBERS) -> str:
    """Say an ``H`` before its key is known."""
    first, last = (
        names[value or 7] if domain is WEEKDAY else names[value]
        for value in (pick.choices[0], pick.choices[-1])
    )
    span = f" from {first} to {last}" if len(pick.choices) < domain.size else ""
    if pick.step < len(pick.choices):
        return f"every {_ordinal(pick.step)} {unit}{span} (start picked per schedule)"
    return f"{'an' if domain is HOUR else 'a'} {unit}{span} (picked per schedule)"


def _ordinal(number: int) -> str:
    return f"{number}{'th' if number in _TEENS else _ENDINGS.get(number % 10, 'th')}"


def _spans(values: tuple[int, ...]) -> str:
    return _listed(_span_list(values, _NUMBERS))


def _span_list(values: tuple[int, ...], names: Sequence[str]) -> list[str]:
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
    return said


def _listed(names: list[str], *, last: str = "and") -> str:
    return f" {last} ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def _plural(values: tuple[int, ...]) -> str:
    return "s" if len(values) > 1 else ""
