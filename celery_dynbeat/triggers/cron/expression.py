"""Cron expressions as text: five fields, or six with seconds as the sixth.

The grammar begins with Vixie's crontab(5): numbers, names, ranges, steps, lists, ``@`` names.
croniter adds ``L``, ``mon#2``, ``L5``, ranges that wrap (``sat-sun``, ``22-2``), and ``5/15`` for
every 15 from 5 to the end. Quartz adds ``LW``, ``15W``, ``L-3``, ``5L`` and ``?``. Jenkins adds
``H``.

Some days depend on the month, such as the last day, the nearest weekday or the second Monday.
"""

import calendar
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import MONTHS, WEEKDAYS, shorten
from celery_dynbeat.triggers.base import hash_of

_SUNDAY, _SATURDAY = 0, 6
#: ``NthWeekday.week`` of ``friL``, the last Friday of the month. ``#`` counts from 1 to 5.
LAST_WEEK = 6
_LAST_SYMBOL = "l"
_TOKEN = "[a-z0-9]{1,3}"  # noqa: S105 - a part of the grammar
_STEP = "(?:/([0-9]{1,9}))?"
_PLAIN = re.compile(rf"(\*|{_TOKEN})(?:-({_TOKEN}))?{_STEP}", re.ASCII)
_HASHED = re.compile(rf"h(?:\(({_TOKEN})-({_TOKEN})\))?{_STEP}", re.ASCII)
_FROM_END = re.compile(r"l(?:-([0-9]{1,2}))?(w)?", re.ASCII)
_NEAREST = re.compile(r"([0-9]{1,2})w|w([0-9]{1,2})", re.ASCII)
_NTH = re.compile(rf"({_TOKEN})#([0-9])", re.ASCII)
# croniter writes l5, Quartz 5L.
_LAST_WEEKDAY = re.compile(rf"({_TOKEN})l|l([0-9])", re.ASCII)


class Month(NamedTuple):
    """The length of a month of a year, and the day of week before its first day (Sunday is 0)."""

    offset: int
    length: int

    @classmethod
    def of(cls, year: int, month: int) -> "Month":
        """Return a month of the calendar."""
        # calendar counts from Monday = 0. In cron's numbers that is the day before.
        return cls(*calendar.monthrange(year, month))

    def weekday(self, day: int) -> int:
        """Return the day of week of a day. Sunday is 0."""
        return (self.offset + day) % 7


@dataclass(frozen=True, slots=True)
class MonthDay:
    """A day counted from the start or end of the month, or the nearest weekday to it.

    ``L`` is the last day, ``L-3`` the third day before it. A weekday is Monday to Friday. ``LW``
    is the weekday nearest to the last day. ``W`` never leaves the month, so that is the last
    weekday.
    """

    number: int
    from_end: bool
    nearest: bool

    def on(self, month: Month) -> int | None:
        """Return the day in ``month``, or None if the month has no such day."""
        day = month.length - self.number if self.from_end else self.number
        if not 1 <= day <= month.length:
            return None
        return _nearest_weekday(day, month) if self.nearest else day


@dataclass(frozen=True, slots=True)
class NthWeekday:
    """A day of the week in the first to fifth week of the month, or in its LAST_WEEK."""

    weekday: int
    week: int

    def on(self, month: Month) -> int | None:
        """Return the day in ``month``, or None if the month has no such day."""
        first = 1 + (self.weekday - month.weekday(1)) % 7
        if self.week == LAST_WEEK:
            return first + (month.length - first) // 7 * 7
        day = first + 7 * (self.week - 1)
        return day if day <= month.length else None


def _nearest_weekday(day: int, month: Month) -> int:
    """Return the weekday nearest to ``day`` in the same month, as Quartz and croniter do."""
    weekday = month.weekday(day)
    if weekday == _SATURDAY:
        return day - 1 if day > 1 else day + 2
    if weekday == _SUNDAY:
        return day + 1 if day < month.length else day - 2
    return day


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
    """Return the value of a number or name.

    7 is not changed, because it is Sunday at the end of a range.

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
    """Return the number after a ``/``. Raises ``InvalidTriggerError`` for the field.

    As in crontab(5), a step may be larger than its field: ``*/100`` is the first value.
    """
    if int(token) >= 1:
        return int(token)
    raise invalid_field(text, field, f"the step {token} is less than 1")


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
            number = hash_of(f"{field} {self.text} {key}{order}")
            selected.append(self._written(left.pop(number % len(left))))
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
    if size > field.size:
        reason = (
            f"the step {size} of H is not from 1 to {field.size}; for longer intervals use Every"
        )
        raise invalid_field(text, field, reason)
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
        # "7-2" begins on Sunday 0. In "fri-sun" Sunday is also 0, but ends the range.
        low %= 7
    length = high - low if low <= high else high - low + field.size
    return [
        (low - field.low + done) % field.size + field.low for done in range(0, length + 1, step)
    ]


# With the longest suffix, a spec has at most 255 characters.
MAX_LENGTH = 240
# A resolved H is up to twice as long: "h,h" becomes "59,59".
MAX_LENGTH_HASHED = MAX_LENGTH // 2

_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_REFUSED = (
    (
        re.compile(r"\?"),
        "'?' means * and stands alone in a day field; write * in another, and a seconds field last",
    ),
    (
        re.compile(r"(^|,)r($|[(/,-])"),
        "R would be random at each reading; write H, which selects once for each schedule",
    ),
)
_FIVE, _SIX = 5, 6
_DAY_FIELDS = (FIELD_RANGES.index(DAY), FIELD_RANGES.index(WEEKDAY))


@dataclass(frozen=True, slots=True)
class CronField:
    """One field: its text, and its values in order.

    ``day_rules`` are days that depend on the month. ``hashed_items`` have values once there is a
    key.
    """

    text: str
    values: tuple[int, ...]
    full: bool
    day_rules: tuple[MonthDay | NthWeekday, ...] = ()
    hashed_items: tuple[HashedItem, ...] = ()

    @property
    def starred(self) -> bool:
        """Whether it begins with ``*``, with or without a step: a wildcard of Vixie's cron."""
        return self.text.startswith("*")


@dataclass(frozen=True, slots=True)
class CronExpression:
    """A whole expression in normal form. ``second`` is None if there are five fields."""

    text: str
    minute: CronField
    hour: CronField
    day: CronField
    month: CronField
    weekday: CronField
    second: CronField | None

    @property
    def wildcard(self) -> bool:
        """Whether it follows elapsed time around a clock change. Else it is a fixed time of day.

        As in Vixie's cron, only minute and hour decide. Seconds only divide the minute in which
        the other fields fire.
        """
        return self.minute.starred or self.hour.starred

    @property
    def fields(self) -> tuple[CronField, ...]:
        """Return the fields in their order."""
        five = (self.minute, self.hour, self.day, self.month, self.weekday)
        return five if self.second is None else (*five, self.second)

    @property
    def hashed(self) -> bool:
        """Whether it contains an ``H``."""
        return any(field.hashed_items for field in self.fields)


@lru_cache(maxsize=4096)
def parse_expression(text: str) -> CronExpression:
    """Return a cron expression.

    Raises ``InvalidTriggerError``. Its ``field`` is the name of the invalid field, or None when
    the number of fields is wrong.
    """
    texts = _split(text)
    if len(texts) not in (_FIVE, _SIX):
        message = (
            f"cron expression {shorten(text)} has {len(texts)} fields; it must have 5"
            " (minute, hour, day of month, month, day of week) or 6 (then seconds, last)"
        )
        raise InvalidTriggerError(message)
    texts = _without_question_marks(texts)
    parsed = [_parse_field(item, field) for item, field in zip(texts, FIELD_RANGES, strict=False)]
    second = parsed[_FIVE] if len(parsed) == _SIX else None
    minute, hour, day, month, weekday = parsed[:_FIVE]
    expression = CronExpression(" ".join(texts), minute, hour, day, month, weekday, second)
    if expression.hashed and len(expression.text) > MAX_LENGTH_HASHED:
        raise _too_long(text, limit=MAX_LENGTH_HASHED)
    return expression


def resolve_hashes(key: str, expression: CronExpression) -> str:
    """Return the expression with the values that ``key`` selects for each ``H``."""
    pairs = zip(expression.fields, FIELD_RANGES, strict=False)
    return " ".join(_resolve_field(field, field_range.name, key) for field, field_range in pairs)


def _resolve_field(field: CronField, name: str, key: str) -> str:
    items = field.text.split(",")
    resolved = {
        hashed.text: iter(hashed.resolve(key, field=name, count=items.count(hashed.text)))
        for hashed in field.hashed_items
    }
    return ",".join(next(resolved[item]) if item in resolved else item for item in items)


def _split(expression: str) -> list[str]:
    if len(expression) > MAX_LENGTH:
        raise _too_long(expression, limit=MAX_LENGTH)
    text = " ".join(expression.lower().split())
    if text == "@reboot":
        message = "'@reboot' is not a time; call the task from Celery's beat_init signal instead"
        raise InvalidTriggerError(message)
    if text.startswith(("cron_tz=", "tz=")):
        zone = shorten(expression.split(maxsplit=1)[0].partition("=")[2])
        message = (
            f"a cron expression names no zone; remove the first word and set timezone to {zone}"
        )
        raise InvalidTriggerError(message)
    if text.startswith("@") and text not in _ALIASES:
        message = f"unknown name {shorten(text)}; known are {', '.join(sorted(_ALIASES))}"
        raise InvalidTriggerError(message)
    return _ALIASES.get(text, text).split()


def _without_question_marks(texts: list[str]) -> list[str]:
    """Return the fields with ``*`` for each day field ``?``, so that equal rules compare equal.

    Quartz, EventBridge, Cronos and robfig/cron read ``?`` as any value. As in croniter, it is
    allowed only in a day field, and only alone.
    """
    return [
        "*" if text == "?" and place in _DAY_FIELDS else text for place, text in enumerate(texts)
    ]


def _too_long(expression: str, *, limit: int) -> InvalidTriggerError:
    hashed = " with an H" if limit == MAX_LENGTH_HASHED else ""
    message = (
        f"cron expression {shorten(expression)} has {len(expression)} characters; at most"
        f" {limit} are allowed{hashed}: use ranges and steps"
    )
    return InvalidTriggerError(message)


def _parse_field(text: str, field: FieldRange) -> CronField:
    for pattern, reason in _REFUSED:
        if pattern.search(text):
            raise invalid_field(text, field, reason)
    values: set[int] = set()
    # As ordered sets.
    day_rules: dict[MonthDay | NthWeekday, None] = {}
    hashed_items: dict[HashedItem, None] = {}
    for item in text.split(","):
        parsed = parse_item(item, field, text)
        if isinstance(parsed, HashedItem):
            hashed_items[parsed] = None
        elif isinstance(parsed, MonthDay | NthWeekday):
            day_rules[parsed] = None
        else:
            values.update(parsed)
    return CronField(
        text,
        tuple(sorted(values)),
        full=len(values) == field.size,
        day_rules=tuple(day_rules),
        hashed_items=tuple(hashed_items),
    )
