"""Cron expressions as text: five fields, or six with seconds as the sixth.

The grammar is that of Vixie's crontab(5) - numbers, names, ranges, steps, lists, the ``@`` names -
with ``L`` (last day of the month) and ``mon#2`` (second Monday of the month) from croniter, and
ranges that wrap (``sat-sun``, ``22-2``). ``5/15`` means from 5 to the end in steps of 15, as in
croniter. Everything is checked here, so that croniter only ever sees plain lists of numbers.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from celery_dynbeat.errors import InvalidTriggerError
from celery_dynbeat.triggers.base import shorten

# With its longest suffix the text still fits into a column of 255 characters.
MAX_LENGTH = 240
LAST_DAY = "l"

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_ITEM = re.compile(r"(\*|[a-z0-9]{1,3})(?:-([a-z0-9]{1,3}))?(?:/([0-9]{1,3}))?", re.ASCII)
_NTH = re.compile(r"([a-z0-9]{1,3})#([0-9])", re.ASCII)
_REFUSED = (
    (re.compile(r"\?"), "'?' is not cron's; write * for any value"),
    (
        re.compile(r"(^|[,-])[hr]($|[(/,-])"),
        "H and R pick a value by hash or by chance; write the value, spread the load by jitter",
    ),
    (re.compile(r"^l?w$|[0-9]w|w[0-9]"), "W (nearest weekday) is not supported; name the days"),
)
_LONGEST = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}


@dataclass(frozen=True, slots=True)
class Domain:
    """The values that a field may take; ``names`` stand for ``low``, ``low + 1`` ..."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Return how many values there are."""
        return self.high - self.low + 1


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its text, and the values that it names, in order."""

    text: str
    values: tuple[int, ...]
    full: bool
    last_day: bool = False
    nth: tuple[tuple[int, int], ...] = ()

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


_DOMAINS = (
    Domain("minute", 0, 59),
    Domain("hour", 0, 23),
    Domain("day of month", 1, 31),
    Domain("month", 1, 12, _MONTHS),
    Domain("day of week", 0, 6, _WEEKDAYS),
    Domain("second", 0, 59),
)
_DAY, _WEEKDAY = _DOMAINS[2], _DOMAINS[4]
_FIVE, _SIX = 5, 6


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
    parsed = [_parse_field(text, domain) for text, domain in zip(texts, _DOMAINS, strict=False)]
    second = parsed[_FIVE] if len(parsed) == _SIX else None
    minute, hour, day, month, weekday = parsed[:_FIVE]
    return Fields(" ".join(texts), minute, hour, day, month, weekday, second)


def month_has(day: int, month: int) -> bool:
    """Whether ``month`` has the day ``day``, at least in leap years."""
    return day <= _LONGEST.get(month, 31)


def _split(expression: str) -> list[str]:
    if len(expression) > MAX_LENGTH:
        message = (
            f"cron expression {shorten(expression)} has {len(expression)} characters; at most"
            f" {MAX_LENGTH} are allowed: use ranges and steps"
        )
        raise InvalidTriggerError(message)
    text = " ".join(expression.lower().split())
    if text == "@reboot":
        message = "'@reboot' is no time; call the task from Celery's beat_init signal instead"
        raise InvalidTriggerError(message)
    if text.startswith("@") and text not in _ALIASES:
        message = f"unknown name {shorten(text)}; cron has {', '.join(sorted(_ALIASES))}"
        raise InvalidTriggerError(message)
    return _ALIASES.get(text, text).split()


def _parse_field(text: str, domain: Domain) -> Field:
    for pattern, reason in _REFUSED:
        if pattern.search(text):
            raise _refusal(text, domain, reason)
    values: set[int] = set()
    nth: set[tuple[int, int]] = set()
    items = text.split(",")
    for item in items:
        if domain is _WEEKDAY and (match := _NTH.fullmatch(item)):
            nth.add((_number(match[1], domain, text) % 7, _week(match[2], text)))
        elif not (domain is _DAY and item == LAST_DAY):
            values.update(_item_values(item, domain, text))
    if nth and values:
        raise _refusal(text, domain, "days with and without # cannot be mixed in one field")
    return Field(
        text,
        tuple(sorted(values)),
        full=len(values) == domain.size,
        last_day=domain is _DAY and LAST_DAY in items,
        nth=tuple(sorted(nth)),
    )


def _item_values(item: str, domain: Domain, text: str) -> set[int]:
    """Return the values of one item of a list: ``*``, ``5``, ``1-5``, ``*/2``, ``1-5/2``."""
    match = _ITEM.fullmatch(item)
    if match is None:
        raise _refusal(text, domain, f"{shorten(item)} is no number, name, range or step")
    first, last, step_text = match.groups()
    if first == "*" and last is not None:
        raise _refusal(text, domain, "* takes no range; write both ends as numbers")
    step = _step(step_text, domain, text)
    if first == "*":
        return set(range(domain.low, domain.high + 1, step))
    low = _number(first, domain, text)
    if last is not None:
        return _walk(low, _number(last, domain, text), step, domain)
    if step_text is None:
        return _walk(low, low, 1, domain)
    return set(range(low % 7 if domain is _WEEKDAY else low, domain.high + 1, step))


def _walk(low: int, high: int, step: int, domain: Domain) -> set[int]:
    """Step from ``low`` to ``high``, round the end of the field if need be."""
    if domain is _WEEKDAY and low > high:
        # The Sunday that opens "sun-tue" written as 7; it closes "fri-sun" written as 0.
        low %= 7
    length = high - low if low <= high else high - low + domain.size
    return {
        (low - domain.low + done) % domain.size + domain.low for done in range(0, length + 1, step)
    }


def _number(token: str, domain: Domain, text: str) -> int:
    """Return the value of a number or name; 7 is Sunday too, and stays 7 to end a range."""
    if token in domain.names:
        return domain.names.index(token) + domain.low
    highest = 7 if domain is _WEEKDAY else domain.high
    if token.isdigit() and domain.low <= int(token) <= highest:
        return int(token)
    if token == LAST_DAY and domain is _DAY:
        raise _refusal(text, domain, "L stands alone or in a list, not in a range or step")
    known = f" or a name from {domain.names[0]} to {domain.names[-1]}" if domain.names else ""
    reason = f"{token!r} is not a number from {domain.low} to {highest}{known}"
    raise _refusal(text, domain, reason)


def _step(token: str | None, domain: Domain, text: str) -> int:
    if token is None:
        return 1
    if 1 <= int(token) <= domain.size:
        return int(token)
    reason = (
        f"the step {token} is not from 1 to {domain.size}: steps start again with each round of the"
        " field; for longer intervals use Every"
    )
    raise _refusal(text, domain, reason)


def _week(digit: str, text: str) -> int:
    if digit in "12345":
        return int(digit)
    raise _refusal(text, _WEEKDAY, f"#{digit} is not from #1 to #5: a month has no other weeks")


def _refusal(text: str, domain: Domain, reason: str) -> InvalidTriggerError:
    return InvalidTriggerError(f"{domain.name} {shorten(text)}: {reason}", field=domain.name)
