"""Recurrences in words. A rule that has no sentence of its own is shown as it is written."""

from collections.abc import Sequence
from datetime import datetime

from celery_dynbeat.triggers.rrule.parts import Freq, Rule, format_rule
from celery_dynbeat.triggers.rrule.text import Recurrence

_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("", "January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_UNITS = ("year", "month", "week", "day", "hour", "minute", "second")
_WORKDAYS, _ALL_DAYS = tuple(range(5)), tuple(range(7))
_MOST_TIMES = 6
_TEENS = (11, 12, 13)


def describe_recurrence(recurrence: Recurrence) -> str:
    """Say a recurrence, its dates and its zone."""
    start = recurrence.dtstart
    words = "; and ".join(_rule(rule, start) for rule in recurrence.rules)
    for moments, said in ((recurrence.rdates, "and on"), (recurrence.exdates, "except")):
        if moments:
            words += f", {said} {len(moments)} date{'s' if moments[1:] else ''}"
    return f"{words}, {recurrence.zone or 'UTC'}"


def _rule(rule: Rule, start: datetime | None) -> str:
    said = _dates(rule, start)
    times = _times(rule, start)
    since = "" if start is None else f" from {start:%Y-%m-%d}"
    if said is None or times is None:
        return f"by the rule {format_rule(rule)}{since}"
    words = f"{said}{times}{since}"
    if rule.count is not None:
        words += f", {rule.count} time{'s' if rule.count > 1 else ''}"
    if rule.until is not None:
        zone = "" if rule.until.tzinfo is None else " UTC"
        words += f", until {rule.until:%Y-%m-%d %H:%M:%S}{zone}"
    return words


def _dates(rule: Rule, start: datetime | None) -> str | None:
    """Return ``every 2 weeks on Monday``, None for a shape without words."""
    if rule.byweekno or rule.byyearday:
        return None
    if rule.freq is Freq.YEARLY:
        return _yearly(rule, start)
    if rule.freq is Freq.MONTHLY:
        days = _days_of_month(rule, start)
        months = (
            f", in {_listed([_MONTHS[month] for month in rule.bymonth])}" if rule.bymonth else ""
        )
        return days and f"{days} of {_every(rule)}{months}"
    if rule.bysetpos or rule.bymonth or rule.bymonthday:
        return None
    weekdays = rule.byday
    if rule.freq is Freq.WEEKLY and start and not weekdays:
        weekdays = ((start.weekday(), 0),)
    return f"{_every(rule)} on {_weekdays(weekdays)}" if weekdays else _every(rule)


def _yearly(rule: Rule, start: datetime | None) -> str | None:
    months = rule.bymonth
    if start and not (months or rule.byday or rule.bymonthday):
        months = (start.month,)
    # BYSETPOS counts within the year, so several months share one first Monday.
    if rule.bysetpos and len(months) > 1:
        return None
    days = _days_of_month(rule, start)
    return (
        f"{days} of {_listed([_MONTHS[month] for month in months])}, {_every(rule)}"
        if (days and months)
        else None
    )


def _days_of_month(rule: Rule, start: datetime | None) -> str | None:
    """Return ``on the last Friday``, None for a shape without words."""
    days, weekdays = rule.bymonthday, rule.byday
    if start and not days and not weekdays:
        days = (start.day,)
    if weekdays and not days:
        return _numbered_weekdays(rule)
    if not days or weekdays or rule.bysetpos:
        return None
    from_start = [str(day) for day in days if day > 0]
    named = [f"day{'s' if from_start[1:] else ''} {_listed(from_start)}"] if from_start else []
    named += [f"the {_nth(day)} day" for day in days if day < 0]
    return f"on {_listed(named)}"


def _numbered_weekdays(rule: Rule) -> str | None:
    weekdays = tuple(day for day, _ in rule.byday)
    if rule.bysetpos:
        names = {_WORKDAYS: "working day", _ALL_DAYS: "day"}
        name = names.get(weekdays) or (_WEEKDAYS[weekdays[0]] if len(weekdays) == 1 else None)
        if name is None or any(number for _, number in rule.byday) or len(_clock(rule)) > 1:
            return None
        return f"on the {_listed([_nth(at) for at in rule.bysetpos])} {name}"
    if not all(number for _, number in rule.byday):
        return f"on {_weekdays(rule.byday)}" if not any(n for _, n in rule.byday) else None
    return f"on {_listed([f'the {_nth(number)} {_WEEKDAYS[day]}' for day, number in rule.byday])}"


def _times(rule: Rule, start: datetime | None) -> str | None:
    """Return `` at 09:00``, nothing where the unit is short, None when there are too many."""
    if rule.freq >= Freq.HOURLY:
        return None if rule.byhour or rule.byminute or rule.bysecond else ""
    if start is None and rule.byhour and not rule.byminute:
        # The minute is that of a beginning which is not known yet.
        return None
    clock = _clock(rule, start)
    if not clock and (rule.byminute or rule.bysecond):
        return None
    if rule.bysetpos and len(clock) > 1:
        return None
    if len(clock) > _MOST_TIMES:
        return None
    return f" at {_listed(clock)}" if clock else ""


def _clock(rule: Rule, start: datetime | None = None) -> list[str]:
    """Return the times of day, none when DTSTART has to give them and is not there."""
    if start is None and not rule.byhour:
        return []
    hours = rule.byhour or ((start.hour,) if start else (0,))
    minutes = rule.byminute or ((start.minute,) if start else (0,))
    seconds = rule.bysecond or ((start.second,) if start else (0,))
    if len(hours) * len(minutes) * len(seconds) > _MOST_TIMES:
        return [""] * (_MOST_TIMES + 1)
    shown = [(hour, minute, second) for hour in hours for minute in minutes for second in seconds]
    return [f"{h:02}:{m:02}{f':{s:02}' if any(seconds) else ''}" for h, m, s in shown]


def _every(rule: Rule) -> str:
    unit = _UNITS[rule.freq]
    return f"every {unit}" if rule.interval == 1 else f"every {rule.interval} {unit}s"


def _weekdays(days: Sequence[tuple[int, int]]) -> str:
    numbers = tuple(day for day, _ in days)
    if numbers == _WORKDAYS:
        return "Monday to Friday"
    return _listed([_WEEKDAYS[day] for day in numbers])


def _nth(number: int) -> str:
    if number == -1:
        return "last"
    size = abs(number)
    suffix = "th" if size % 100 in _TEENS else {1: "st", 2: "nd", 3: "rd"}.get(size % 10, "th")
    return f"{size}{suffix}" if number > 0 else f"{size}{suffix} last"


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
