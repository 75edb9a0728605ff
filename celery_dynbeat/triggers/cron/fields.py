"""The fields of a cron expression: their ranges, and items such as ``1-5/2``, ``LW``, ``H/15``."""

import hashlib
import re
from dataclasses import dataclass

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.cron.calendar_days import LAST_WEEK, MonthDay, NthWeekday
from celery_dynbeat.triggers.words import MONTHS, WEEKDAYS

_LAST_SYMBOL = "l"
_TOKEN = "[a-z0-9]{1,3}"  # noqa: S105 - a part of the grammar
_STEP = "(?:/([0-9]{1,3}))?"
_PLAIN = re.compile(rf"(\*|{_TOKEN})(?:-({_TOKEN}))?{_STEP}", re.ASCII)
_HASHED = re.compile(rf"h(?:\(({_TOKEN})-({_TOKEN})\))?{_STEP}", re.ASCII)
_FROM_END = re.compile(r"l(?:-([0-9]{1,2}))?(w)?", re.ASCII)
_NEAREST = re.compile(r"([0-9]{1,2})w|w([0-9]{1,2})", re.ASCII)
_NTH = re.compile(rf"({_TOKEN})#([0-9])", re.ASCII)
# croniter writes l5, Quartz 5L.
_LAST_WEEKDAY = re.compile(rf"({_TOKEN})l|l([0-9])", re.ASCII)


@dataclass(frozen=True, slots=True)
class FieldRange:
    """The values of a field. ``names`` stand for ``low``, ``low + 1`` and so on.

    ``always_high`` is the highest value that occurs each time: every month has a 28th.
    """

    name: str
    low: int
    high: int
    always_high: int
    names: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Return the number of values."""
        return self.high - self.low + 1


MINUTE = FieldRange("minute", 0, 59, always_high=59)
HOUR = FieldRange("hour", 0, 23, always_high=23)
DAY = FieldRange("day of month", 1, 31, always_high=28)
MONTH = FieldRange("month", 1, 12, 12, tuple(name[:3].lower() for name in MONTHS))
# Sunday, the last of WEEKDAYS, is 0 in cron.
WEEKDAY = FieldRange(
    "day of week", 0, 6, 6, tuple(WEEKDAYS[day - 1][:3].lower() for day in range(7))
)
SECOND = FieldRange("second", 0, 59, always_high=59)
#: In the order of an expression.
FIELD_RANGES = (MINUTE, HOUR, DAY, MONTH, WEEKDAY, SECOND)


def parse_number(token: str, field: FieldRange, text: str) -> int:
    """Return the value of a number or name. 7 stays 7: it is Sunday at the end of a range.

    Raises ``InvalidTriggerError`` for the field, whose whole text is ``text``.
    """
    if token in field.names:
        return field.names.index(token) + field.low
    highest = 7 if field is WEEKDAY else field.high
    if token.isdigit() and field.low <= int(token) <= highest:
        return int(token)
    if field is DAY and "w" in token:
        reason = "W (nearest weekday) follows one day, as in 15W or LW; it takes no range or step"
    elif field is DAY and token == _LAST_SYMBOL:
        reason = "L stands alone or in a list, as L or L-3, not in a range or step"
    elif field is WEEKDAY and token == _LAST_SYMBOL:
        reason = "L follows its day, as in friL, the last Friday of the month"
    else:
        names = f" or a name from {field.names[0]} to {field.names[-1]}" if field.names else ""
        reason = f"{token!r} is not a number from {field.low} to {highest}{names}"
    raise invalid_field(text, field, reason)


def parse_step(token: str, field: FieldRange, text: str) -> int:
    """Return the number after a ``/``. Raises ``InvalidTriggerError`` for the field."""
    if 1 <= int(token) <= field.size:
        return int(token)
    reason = (
        f"the step {token} is not from 1 to {field.size}: steps start again with each round of the"
        " field; for longer intervals use Every"
    )
    raise invalid_field(text, field, reason)


def invalid_field(text: str, field: FieldRange, reason: str) -> InvalidTriggerError:
    """Return the error of a field: its name, its text, and the rule with the hint."""
    return InvalidTriggerError(f"{field.name} {shorten(text)}: {reason}", field=field.name)


@dataclass(frozen=True, slots=True)
class HashedItem:
    """An ``H``: every ``step``-th of ``choices``. A key selects which of the first begins."""

    text: str
    choices: tuple[int, ...]
    step: int

    @property
    def outcomes(self) -> tuple[tuple[int, ...], ...]:
        """Return the values for each possible beginning, in order."""
        starts = range(min(self.step, len(self.choices)))
        return tuple(self.choices[start :: self.step] for start in starts)

    def resolve(self, key: str, *, field: str, count: int = 1) -> list[str]:
        """Return the numbers, or ranges with steps, that ``key`` selects for ``count`` items.

        They never change and are equal on every machine. Other fields and other items are selected
        independently. Repeated items get different values as long as there are any.
        """
        left, selected = list[tuple[int, ...]](), list[str]()
        for place in range(count):
            left = left or list(self.outcomes)
            order = f" {place}" if place else ""
            seed = f"{field} {self.text} {key}{order}".encode(errors="surrogatepass")
            digest = int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "big")
            selected.append(self._written(left.pop(digest % len(left))))
        return selected

    def _written(self, values: tuple[int, ...]) -> str:
        return f"{values[0]}-{self.choices[-1]}/{self.step}" if values[1:] else str(values[0])


def parse_item(
    item: str, field: FieldRange, text: str
) -> HashedItem | MonthDay | NthWeekday | list[int]:
    """Return the meaning of one item. ``text`` is the whole field, for the error.

    Raises ``InvalidTriggerError`` for the field.
    """
    if item.startswith("h"):
        return _hashed_item(item, field, text)
    day: MonthDay | NthWeekday | None = None
    if field is DAY:
        day = _month_day(item, text)
    elif field is WEEKDAY:
        day = _nth_weekday(item, text)
    return _values(item, field, text) if day is None else day


def _hashed_item(item: str, field: FieldRange, text: str) -> HashedItem:
    match = _HASHED.fullmatch(item)
    if match is None:
        reason = f"{shorten(item)} is not a form of H: H, H(0-29), H/15, H(0-29)/10"
        raise invalid_field(text, field, reason)
    first, last, step = match.groups()
    if first is None:
        # Only days that every month has, as in Jenkins (hudson.scheduler.BaseParser). croniter
        # would select from 31 days and skip months.
        choices = list(range(field.low, field.always_high + 1))
    else:
        low, high = parse_number(first, field, text), parse_number(last, field, text)
        choices = _range(low, high, 1, field)
    size = len(choices) if step is None else parse_step(step, field, text)
    return HashedItem(item, tuple(choices), size)


def _month_day(item: str, text: str) -> MonthDay | None:
    if match := _FROM_END.fullmatch(item):
        back, nearest = match.groups()
        if back is not None and not 1 <= int(back) < DAY.high:
            raise invalid_field(text, DAY, f"L-{back} is not from L-1 to L-{DAY.high - 1}")
        return MonthDay(int(back or 0), from_end=True, nearest=nearest is not None)
    if match := _NEAREST.fullmatch(item):
        number = parse_number(match[1] or match[2], DAY, text)
        return MonthDay(number, from_end=False, nearest=True)
    return None


def _nth_weekday(item: str, text: str) -> NthWeekday | None:
    if match := _NTH.fullmatch(item):
        if match[2] not in "12345":
            reason = f"#{match[2]} is not from #1 to #5: a month has no other weeks"
            raise invalid_field(text, WEEKDAY, reason)
        return NthWeekday(parse_number(match[1], WEEKDAY, text) % 7, int(match[2]))
    if match := _LAST_WEEKDAY.fullmatch(item):
        return NthWeekday(parse_number(match[1] or match[2], WEEKDAY, text) % 7, LAST_WEEK)
    return None


def _values(item: str, field: FieldRange, text: str) -> list[int]:
    """Return the values of ``*``, ``5``, ``1-5``, ``*/2``, ``1-5/2``."""
    match = _PLAIN.fullmatch(item)
    if match is None:
        raise invalid_field(text, field, f"{shorten(item)} is not a number, name, range or step")
    first, last, step_text = match.groups()
    if first == "*" and last is not None:
        raise invalid_field(text, field, "* takes no range; write both ends as numbers")
    step = 1 if step_text is None else parse_step(step_text, field, text)
    if first == "*":
        return list(range(field.low, field.high + 1, step))
    low = parse_number(first, field, text)
    if last is not None:
        return _range(low, parse_number(last, field, text), step, field)
    if step_text is None:
        return _range(low, low, 1, field)
    return list(range(low % 7 if field is WEEKDAY else low, field.high + 1, step))


def _range(low: int, high: int, step: int, field: FieldRange) -> list[int]:
    """Return the values from ``low`` to ``high``. If ``low`` is higher, they wrap at the end."""
    if field is WEEKDAY and low > high:
        # "7-2" begins on Sunday 0. In "fri-sun" Sunday is 0 too, but ends the range.
        low %= 7
    length = high - low if low <= high else high - low + field.size
    return [
        (low - field.low + done) % field.size + field.low for done in range(0, length + 1, step)
    ]
