"""The phrases: intervals, delays, and days with times of day."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from math import prod

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.base import Trigger, load_class
from celery_dynbeat.triggers.cron.trigger import Cron
from celery_dynbeat.triggers.every import Every
from celery_dynbeat.triggers.once import Once
from celery_dynbeat.triggers.phrases.days import CronDays, take_days
from celery_dynbeat.triggers.phrases.reader import NAMED_TIMES, UNITS, PhraseError, PhraseReader
from celery_dynbeat.triggers.zones import first_instant, load_zone

_CALENDAR_UNITS = frozenset({"days", "weeks", "months", "years"})
_CLOCK = re.compile(
    r"(?P<hour>[0-9]{1,2})(?::(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2}))?)?(?P<half>am|pm)?"
)
_NOON = 12
_MAX_HOUR, _MAX_MINUTE = 23, 59
#: The number of times that describe() shows. It also limits the cost of triggers that are combined.
_MAX_TIMES = 6


@dataclass(frozen=True, slots=True)
class Zones:
    """The zones of rules and of dates. None leaves a rule without a zone, and refuses a date."""

    rule: str | None
    date: str | None


def take_phrase(reader: PhraseReader, zones: Zones) -> Trigger:
    """Consume all words, and return their trigger.

    Raises ``PhraseError``, or ``InvalidTriggerError`` for an unknown or missing zone.
    """
    trigger = _take_interval(reader, zones.rule) or _take_delay(reader)
    return trigger or _take_calendar(reader, zones)


def _take_interval(reader: PhraseReader, zone: str | None) -> Trigger | None:
    """Return the trigger for ``every 5 minutes``, or None if the phrase is not an interval."""
    start = reader.position
    amounts = _take_interval_amounts(reader)
    if amounts and not reader.next:
        return _interval(amounts, zone)
    if reader.next == "at" and max(amounts.values(), default=1) > 1:
        raise PhraseError("an interval counts from its start and takes no time of day")
    reader.position = start
    return None


def _take_interval_amounts(reader: PhraseReader) -> Mapping[str, float]:
    if reader.take("hourly"):
        return {"hours": 1}
    if not reader.take("every", "each"):
        return {}
    unit = UNITS.get(reader.next)
    # If there is no number, only the singular is accepted: "every hour".
    if unit is None or reader.next.endswith("s"):
        return _take_amounts(reader)
    reader.position += 1
    return {unit: 1}


def _interval(amounts: Mapping[str, float], zone: str | None) -> Trigger:
    is_calendar = bool(amounts.keys() & _CALENDAR_UNITS)
    if is_calendar and len(amounts) > 1:
        raise PhraseError("days and longer units stand alone, as in 'every 2 days'")
    if is_calendar and any(isinstance(amount, float) for amount in amounts.values()):
        raise PhraseError("days and longer units take whole numbers; write 'every 36 hours'")
    try:
        # The units are arguments of both.
        return (
            Every(timezone=zone, **amounts)  # type: ignore[arg-type]
            if is_calendar
            else Every(timedelta(**amounts))
        )
    except InvalidTriggerError as error:
        if error.field == "timezone":
            raise
        raise _out_of_range("an interval") from error


def _take_delay(reader: PhraseReader) -> Trigger | None:
    """Return the trigger for ``in 40 hours``, or None if the phrase is not a delay."""
    if not reader.take("in"):
        return None
    amounts = _take_amounts(reader)
    if not amounts:
        raise PhraseError("after 'in' comes a duration, as in 'in 40 hours'")
    reader.check_end()
    if amounts.keys() & {"months", "years"}:
        raise PhraseError("months and years differ in length; write days, as in 'in 30 days'")
    try:
        return Once.after(timedelta(**amounts))
    except InvalidTriggerError as error:
        raise _out_of_range("a delay") from error


def _out_of_range(what: str) -> PhraseError:
    return PhraseError(f"{what} is longer than 0 and at most 100 years")


def _take_amounts(reader: PhraseReader) -> dict[str, float]:
    """Consume ``1 hour and 30 minutes``, and return the number of each unit. Else return {}."""
    amounts: dict[str, float] = {}
    start = reader.position
    while (number := reader.take_amount()) is not None and (unit := UNITS.get(reader.next)):
        if unit in amounts:
            raise PhraseError(f"it has two numbers of {unit}")
        reader.position += 1
        amounts[unit] = number
        start = reader.position
        reader.take(",")
        reader.take("and")
    reader.position = start
    return amounts


def _take_calendar(reader: PhraseReader, zones: Zones) -> Trigger:
    """Return the trigger for days and times of day, in either order."""
    is_once = bool(reader.take("once"))
    if is_once:
        # describe() writes "once at 2026-12-24 18:00 UTC".
        reader.take("at")
    days, times = _take_days_and_times(reader)
    reader.check_end()
    if isinstance(days, date):
        return _once(days, times, zones.date)
    if is_once:
        raise PhraseError("'once' takes a date, as in 'once on 2026-12-24 at 18:00'")
    triggers = [Cron(text, timezone=zones.rule) for text in cron_expressions(times, days)]
    if len(triggers) == 1:
        return triggers[0]
    combined: Trigger = load_class("any_of")(*triggers)
    return combined.checked()


def _take_days_and_times(reader: PhraseReader) -> tuple[CronDays | date, list[time]]:
    if reader.next == "at":
        times = take_times(reader)
        reader.take(",")
        return _take_required_days(reader), times
    days = _take_required_days(reader)
    reader.take(",")
    return days, take_times(reader, at_required=not isinstance(days, date))


def _take_required_days(reader: PhraseReader) -> CronDays | date:
    days = take_days(reader)
    if days is not None:
        return days
    if reader.next:
        raise PhraseError(f"{shorten(reader.next)} is neither an interval nor a day")
    raise PhraseError("add the days, as in 'daily at 9' or 'monday and thursday at 9'")


def _once(day: date, times: list[time], zone: str | None) -> Trigger:
    if len(times) > 1:
        raise PhraseError("a date has one time of day")
    wall = datetime.combine(day, times[0])
    if zone is None:
        message = (
            f"{wall} has no time zone: end the words with one, such as 'UTC' or 'Asia/Seoul', or"
            " pass timezone="
        )
        raise InvalidTriggerError(message, field="timezone")
    return Once(first_instant(load_zone(zone), wall)[0])


@dataclass(frozen=True, slots=True)
class _Clock:
    """A time of day. ``half`` is am, pm or "" of its text, or None of noon and midnight."""

    at: time
    half: str | None


def take_times(reader: PhraseReader, *, at_required: bool = True) -> list[time]:
    """Consume ``at`` and one time of day or several, and return them in their order.

    Raises ``PhraseError``.
    """
    if not reader.take("at") and (at_required or not reader.next):
        raise PhraseError("add a time of day, as in 'daily at 9:30' or 'weekdays at 6 pm'")
    clocks = reader.take_list(_take_clock)
    if not clocks:
        raise PhraseError("write the time of day as '9', '9:30 pm', '17:30', 'noon' or 'midnight'")
    if len({bool(clock.half) for clock in clocks if clock.half is not None}) > 1:
        raise PhraseError("write am or pm after each time of day, or after none")
    if len(clocks) > _MAX_TIMES:
        raise PhraseError(f"it has {len(clocks)} times of day; at most {_MAX_TIMES} are allowed")
    return sorted({clock.at for clock in clocks})


def cron_expressions(times: Sequence[time], days: CronDays) -> list[str]:
    """Return the cron expressions that fire at ``times`` on ``days``: one if possible."""
    hours, minutes, seconds = (
        sorted({getattr(at, unit) for at in times}) for unit in ("hour", "minute", "second")
    )
    if len(times) == prod(map(len, (hours, minutes, seconds))):
        return [_cron(minutes, hours, days, seconds)]
    return [_cron([at.minute], [at.hour], days, [at.second]) for at in times]


def _cron(
    minutes: Sequence[int], hours: Sequence[int], days: CronDays, seconds: Sequence[int]
) -> str:
    minute, hour, second = (",".join(map(str, values)) for values in (minutes, hours, seconds))
    expression = f"{minute} {hour} {days.day} * {days.weekday}"
    return expression if second == "0" else f"{expression} {second}"


def _take_clock(reader: PhraseReader) -> _Clock | None:
    named = reader.take(*NAMED_TIMES)
    if named:
        return _Clock(NAMED_TIMES[named], None)
    match = _CLOCK.fullmatch(reader.next)
    if match is None:
        return None
    reader.position += 1
    half = match["half"] or reader.take("am", "pm")
    hour, minute, second = (int(match[unit] or 0) for unit in ("hour", "minute", "second"))
    if half and not 1 <= hour <= _NOON:
        raise PhraseError(f"{match[0]} is not a time: with am or pm, the hours are 1 to 12")
    if hour > _MAX_HOUR or max(minute, second) > _MAX_MINUTE:
        raise PhraseError(f"{match[0]} is not a time: times are 0:00 to 23:59")
    if half:
        hour = hour % _NOON + (_NOON if half == "pm" else 0)
    return _Clock(time(hour, minute, second), half)
