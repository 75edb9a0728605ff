"""The phrases: intervals, delays, and days with times of day."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.base import Trigger
from celery_dynbeat.triggers.cron.trigger import Cron
from celery_dynbeat.triggers.interval.every import Every
from celery_dynbeat.triggers.kinds import load_class
from celery_dynbeat.triggers.once import Once
from celery_dynbeat.triggers.phrases.days import CronDays, take_days
from celery_dynbeat.triggers.phrases.reader import UNITS, PhraseError, PhraseReader
from celery_dynbeat.triggers.phrases.times import cron_expressions, take_times
from celery_dynbeat.triggers.zones import first_instant, load_zone

_CALENDAR_UNITS = frozenset({"days", "weeks", "months", "years"})


@dataclass(frozen=True, slots=True)
class Zones:
    """The zone of a rule, and that of a date. None: the text must name it, or there is none."""

    rule: str | None
    date: str | None


def take_phrase(reader: PhraseReader, zones: Zones) -> Trigger:
    """Consume all words, and return their trigger.

    Raises ``PhraseError``, or ``InvalidTriggerError`` for an unknown or missing zone.
    """
    trigger = _take_interval(reader, zones.rule) or _take_delay(reader)
    return trigger or _take_calendar(reader, zones)


def _take_interval(reader: PhraseReader, zone: str | None) -> Trigger | None:
    """Return the trigger for ``every 5 minutes``, None if the phrase is no interval."""
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
    # Without a number, only the singular: "every hour".
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
    """Return the trigger for ``in 40 hours``, None if the phrase is no delay."""
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
    triggers = [Cron(each, timezone=zones.rule) for each in cron_expressions(times, days)]
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
        raise PhraseError(f"{shorten(reader.next)} is no interval and no day")
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
