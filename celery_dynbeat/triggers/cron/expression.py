"""Cron expressions as text: five fields, or six with seconds as the sixth.

The grammar begins with Vixie's crontab(5): numbers, names, ranges, steps, lists, ``@`` names.
croniter adds ``L``, ``mon#2``, ``L5``, ranges that wrap (``sat-sun``, ``22-2``), and ``5/15`` for
every 15 from 5 to the end. Quartz adds ``LW``, ``15W``, ``L-3``, ``5L`` and ``?``. Jenkins adds
``H``.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.cron.calendar_days import MonthDay, NthWeekday
from celery_dynbeat.triggers.cron.fields import (
    DAY,
    FIELD_RANGES,
    WEEKDAY,
    FieldRange,
    HashedItem,
    invalid_field,
    parse_item,
)

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
