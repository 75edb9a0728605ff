"""The days of a phrase: "weekdays", "monday and thursday", "first of the month", "2026-12-24"."""

import re
from dataclasses import dataclass
from datetime import date

from celery_dynbeat.common.text import FIRST_YEAR, LAST_YEAR, WEEKDAYS, ordinal
from celery_dynbeat.triggers.phrases.reader import DAYS, LAST, ORDINALS, PhraseError, PhraseReader

_CRON_NAMES = tuple(name[:3].lower() for name in WEEKDAYS)
_WORKDAYS, _WEEKEND = [0, 1, 2, 3, 4], [5, 6]
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_OF_THE_MONTH = ("of the month", "of every month", "of each month")
#: Each month has these days.
_SHORTEST_MONTH, _LONGEST_MONTH = 28, 31
_MAX_WEEK = 5


@dataclass(frozen=True, slots=True)
class CronDays:
    """The two day fields of a cron expression. One of them is ``*``."""

    day: str = "*"
    weekday: str = "*"


@dataclass(frozen=True, slots=True)
class _MonthDay:
    """``first``, ``15th day``, ``last friday``. ``noun`` is "" if it is left out."""

    number: int
    noun: str


def take_days(reader: PhraseReader) -> CronDays | date | None:
    """Consume days, and return them. None if another word comes next. Raises ``PhraseError``."""
    if reader.take("daily", "every day", "each day"):
        return CronDays()
    monthly = reader.take("monthly on", "every month on", "each month on")
    weekly = "" if monthly else reader.take("weekly on", "every week on", "each week on")
    every = "" if monthly or weekly else reader.take("every", "each")
    if not (monthly or weekly or every):
        reader.take("on")
        if _DATE.fullmatch(reader.next):
            return _take_date(reader)
    weekdays = [] if monthly else _take_weekdays(reader)
    if weekdays:
        return CronDays(weekday=_cron_weekdays(weekdays))
    if weekly:
        raise PhraseError("name the weekdays, as in 'weekly on monday at 9'")
    if every and reader.next.isdigit():
        raise PhraseError(
            "only units of time take a number, as in 'every 7 days': for a weekday write"
            " 'every monday at 9'"
        )
    return _take_month_days(reader, monthly=bool(monthly), every=bool(every))


def _take_date(reader: PhraseReader) -> date:
    text = reader.next
    reader.position += 1
    try:
        day = date.fromisoformat(text)
    except ValueError as error:
        raise PhraseError(f"the day {text} does not exist") from error
    if not FIRST_YEAR <= day.year <= LAST_YEAR:
        raise PhraseError(f"the year of {text} is not from {FIRST_YEAR} to {LAST_YEAR}")
    return day


def _take_weekdays(reader: PhraseReader) -> list[int]:
    if reader.take("weekdays", "weekday"):
        return _WORKDAYS
    if reader.take("weekends", "weekend"):
        return _WEEKEND
    return [day for days in reader.take_list(_take_weekday_range) for day in days]


def _take_weekday_range(reader: PhraseReader) -> list[int] | None:
    first = _take_weekday(reader)
    if first is None:
        return None
    last = first
    if reader.take("to", "through"):
        end = _take_weekday(reader)
        if end is None:
            raise PhraseError("a range of days ends with a weekday, as in 'monday to friday'")
        last = end
    # A range may wrap around: friday to monday.
    return [day % 7 for day in range(first, last + (7 if last < first else 0) + 1)]


def _take_weekday(reader: PhraseReader) -> int | None:
    day = DAYS.get(reader.next)
    if day is not None:
        reader.position += 1
    return day


def _cron_weekdays(days: list[int]) -> str:
    different = sorted(set(days))
    if len(different) == len(WEEKDAYS):
        return "*"
    if different == _WORKDAYS:
        return "mon-fri"
    return ",".join(_CRON_NAMES[day] for day in different)


def _take_month_days(reader: PhraseReader, *, monthly: bool, every: bool) -> CronDays | None:
    groups = reader.take_list(_take_month_day_group)
    items = [item for group in groups for item in group]
    if not items:
        return None
    if not (reader.take(*_OF_THE_MONTH) or monthly):
        _check_every(items, every=every)
    return _cron_month_days(_with_nouns(items))


def _check_every(items: list[_MonthDay], *, every: bool) -> None:
    """Raise PhraseError unless the items are days of each month without "of the month"."""
    if not every or any(item.noun or item.number == LAST for item in items):
        raise PhraseError("add 'of the month', as in 'first monday of the month at 9'")
    longest = max(item.number for item in items)
    if longest > _SHORTEST_MONTH:
        raise PhraseError(
            f"some months have no {ordinal(longest)}: write 'last day of the month at 9', or"
            f" 'monthly on the {ordinal(longest)} at 9' to leave these months out"
        )


def _take_month_day_group(reader: PhraseReader) -> list[_MonthDay] | None:
    """Consume ``the 15th``, ``the last friday`` or ``days 1, 2 and 5 to 9``."""
    if reader.take("day", "days"):
        ranges = reader.take_list(_take_number_range)
        return [_MonthDay(number, "day") for numbers in ranges for number in numbers] or None
    reader.take("the")
    number = ORDINALS.get(reader.next)
    if number is None:
        return None
    reader.position += 1
    return [_MonthDay(number, _take_noun(reader))]


def _take_number_range(reader: PhraseReader) -> list[int] | None:
    first = reader.take_number()
    if first is None:
        return None
    last = reader.take_number() if reader.take("to", "through") else first
    if last is None or not 1 <= first <= last <= _LONGEST_MONTH:
        raise PhraseError("days of the month are numbers from 1 to 31, as in 'days 1 to 5'")
    return list(range(first, last + 1))


def _take_noun(reader: PhraseReader) -> str:
    weekday = _take_weekday(reader)
    return reader.take("day", "weekday") if weekday is None else _CRON_NAMES[weekday]


def _with_nouns(items: list[_MonthDay]) -> list[_MonthDay]:
    """Return the items with each noun: ``first and third monday`` are both Mondays."""
    noun, named = "day", []
    for item in reversed(items):
        noun = item.noun or noun
        named.append(_MonthDay(item.number, noun))
    return named[::-1]


def _cron_month_days(items: list[_MonthDay]) -> CronDays:
    # Without repetitions, in the order of the words.
    weekdays = dict.fromkeys(_cron_nth_weekday(item) for item in items if item.noun in _CRON_NAMES)
    days = {_cron_day(item) for item in items if item.noun not in _CRON_NAMES}
    if days and weekdays:
        raise PhraseError("name days of the month or weekdays of the month, not both")
    return CronDays(
        day=",".join(sorted(days, key=_day_order)) or "*",
        weekday=",".join(weekdays) or "*",
    )


def _cron_nth_weekday(item: _MonthDay) -> str:
    if item.number > _MAX_WEEK:
        raise PhraseError("a month has at most five of each weekday")
    return f"{item.noun}L" if item.number == LAST else f"{item.noun}#{item.number}"


def _cron_day(item: _MonthDay) -> str:
    if item.noun == "weekday":
        if item.number != LAST:
            raise PhraseError("only the last weekday of the month can be counted")
        return "LW"
    return "L" if item.number == LAST else str(item.number)


def _day_order(day: str) -> tuple[bool, int]:
    return not day.isdigit(), int(day) if day.isdigit() else 0
