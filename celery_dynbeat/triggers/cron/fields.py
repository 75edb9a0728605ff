"""Cron expressions as text: five fields, or six with seconds as the sixth.

The grammar is that of Vixie's crontab(5) - numbers, names, ranges, steps, lists, the ``@`` names -
with what others have added: ``L``, ``mon#2`` and ``L5`` from croniter, which also has ranges that
wrap (``sat-sun``, ``22-2``) and ``5/15`` for from 5 to the end in steps of 15; ``LW``, ``15W``,
``L-3``, ``5L`` and ``?`` from Quartz; ``H`` from Jenkins. Everything is checked here, so that
croniter only ever sees plain lists of numbers.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.cron.days import MonthDay, NthWeekday
from celery_dynbeat.triggers.cron.domains import DAY, DOMAINS, WEEKDAY, Domain, refusal
from celery_dynbeat.triggers.cron.items import Pick, parse_item

# With its longest suffix the text still fits into a column of 255 characters.
MAX_LENGTH = 240
# The numbers that stand for H take up to twice its room: "h,h" becomes "59,59".
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
        "R would pick by chance, anew at each reading; write H, which picks once for each schedule",
    ),
)
_FIVE, _SIX = 5, 6
_DAY_FIELDS = (DOMAINS.index(DAY), DOMAINS.index(WEEKDAY))


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its text, the values that it names, in order, and what is no number.

    ``rules`` are days that the calendar names, ``picks`` what waits for a key.
    """

    text: str
    values: tuple[int, ...]
    full: bool
    rules: tuple[MonthDay | NthWeekday, ...] = ()
    picks: tuple[Pick, ...] = ()

    @property
    def starred(self) -> bool:
        """Whether it begins with ``*``: what Vixie's cron calls a wildcard, steps or not."""
        return self.text.startswith("*")


@dataclass(frozen=True, slots=True)
class Fields:
    """A whole expression, normalised. ``second`` is None for one of five fields."""

    text: str
    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field
    second: Field | None

    @property
    def wildcard(self) -> bool:
        """Whether it follows elapsed time when clocks change; else it is a fixed time of day.

        Vixie's cron looks at minute and hour alone. A seconds field changes nothing: it splits
        the minute in which the rest fires.
        """
        return self.minute.starred or self.hour.starred

    @property
    def each(self) -> tuple[Field, ...]:
        """Return the fields in their order."""
        five = (self.minute, self.hour, self.day, self.month, self.weekday)
        return five if self.second is None else (*five, self.second)

    @property
    def hashed(self) -> bool:
        """Whether there is an ``H`` in it."""
        return any(field.picks for field in self.each)


@lru_cache(maxsize=4096)
def parse_fields(expression: str) -> Fields:
    """Read a cron expression.

    Raises ``InvalidTriggerError``; its ``field`` is the name of the field at fault, None when the
    number of fields is wrong.
    """
    texts = _split(expression)
    if len(texts) not in (_FIVE, _SIX):
        message = (
            f"cron expression {shorten(expression)} has {len(texts)} fields; it must have 5"
            " (minute, hour, day of month, month, day of week) or 6 (then seconds, last)"
        )
        raise InvalidTriggerError(message)
    texts = _without_question_marks(texts)
    parsed = [_parse_field(text, domain) for text, domain in zip(texts, DOMAINS, strict=False)]
    second = parsed[_FIVE] if len(parsed) == _SIX else None
    minute, hour, day, month, weekday = parsed[:_FIVE]
    fields = Fields(" ".join(texts), minute, hour, day, month, weekday, second)
    if fields.hashed and len(fields.text) > MAX_LENGTH_HASHED:
        raise _too_long(expression, limit=MAX_LENGTH_HASHED)
    return fields


def picked_by(key: str, fields: Fields) -> str:
    """Return the expression with the values that ``key`` picks for each ``H``."""
    pairs = zip(fields.each, DOMAINS, strict=False)
    return " ".join(_picked_in(field, domain, key) for field, domain in pairs)


def _picked_in(field: Field, domain: Domain, key: str) -> str:
    items = field.text.split(",")
    picked = {
        pick.text: iter(pick.picked_by(key, field=domain.name, count=items.count(pick.text)))
        for pick in field.picks
    }
    return ",".join(next(picked[item]) if item in picked else item for item in items)


def _split(expression: str) -> list[str]:
    if len(expression) > MAX_LENGTH:
        raise _too_long(expression, limit=MAX_LENGTH)
    text = " ".join(expression.lower().split())
    if text == "@reboot":
        message = "'@reboot' is no time; call the task from Celery's beat_init signal instead"
        raise InvalidTriggerError(message)
    if text.startswith("@") and text not in _ALIASES:
        message = f"unknown name {shorten(text)}; cron has {', '.join(sorted(_ALIASES))}"
        raise InvalidTriggerError(message)
    return _ALIASES.get(text, text).split()


def _without_question_marks(texts: list[str]) -> list[str]:
    """Return the fields with ``*`` for each day field that is ``?``, so that equal rules are equal.

    Quartz, EventBridge, Cronos and robfig/cron read ``?`` as any value. Like croniter, this allows
    it in a day field only, and only alone.
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


def _parse_field(text: str, domain: Domain) -> Field:
    for pattern, reason in _REFUSED:
        if pattern.search(text):
            raise refusal(text, domain, reason)
    values: set[int] = set()
    # Without repetitions, in the order in which they are written.
    rules: dict[MonthDay | NthWeekday, None] = {}
    picks: dict[Pick, None] = {}
    for item in text.split(","):
        parsed = parse_item(item, domain, text)
        if isinstance(parsed, Pick):
            picks[parsed] = None
        elif isinstance(parsed, MonthDay | NthWeekday):
            rules[parsed] = None
        else:
            values.update(parsed)
    return Field(
        text,
        tuple(sorted(values)),
        full=len(values) == domain.size,
        rules=tuple(rules),
        picks=tuple(picks),
    )
