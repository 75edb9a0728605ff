"""Durations, instants and retry policies as people type them, in a shell or in a form. PURE.

Each error is a ValueError with the value and the rule.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from celery_dynbeat.common.retry import Retry
from celery_dynbeat.common.text import shorten
from celery_dynbeat.common.window import as_share
from celery_dynbeat.triggers.iso8601 import parse_duration as parse_iso_duration
from celery_dynbeat.triggers.iso8601 import short_duration

_SHOWN_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60))


@dataclass(frozen=True, slots=True)
class TypedInstant:
    """An instant as it was typed: with an offset, without an offset, or relative to now.

    A time of day is the last one before now.
    """

    value: datetime | timedelta | time

    def resolve(self, *, now: Callable[[], datetime], zone: ZoneInfo) -> datetime:
        """Return the aware instant; a time without an offset is on the clock of ``zone``."""
        if isinstance(self.value, timedelta):
            return (now() + self.value).replace(microsecond=0)
        if isinstance(self.value, time):
            present = now().astimezone(zone)
            today = datetime.combine(present.date(), self.value, zone)
            return today if today <= present else today - timedelta(days=1)
        return self.value if self.value.tzinfo else self.value.replace(tzinfo=zone)


def parse_duration(text: str) -> timedelta:
    """Return the duration of ``90``, ``5m``, ``1.5h`` or ``PT5M``. Raises ValueError."""
    for written in (text, f"{text}s"):
        if (short := short_duration(written)) is not None:
            return short
    if text.strip()[:1].upper() == "P":
        parsed = parse_iso_duration(text)
        if isinstance(parsed, timedelta):
            return parsed
    raise ValueError(
        f"{shorten(text)} is not a duration: write seconds, or a number with s, m, h, d or w,"
        " such as 90, 5m, 2h or 1d"
    )


def format_duration(value: timedelta) -> str:
    """Return ``1d``, ``2h``, ``5m`` or ``1.5s``, which ``parse_duration`` reads back exactly."""
    for unit, size in _SHOWN_UNITS:
        count, rest = divmod(value, timedelta(seconds=size))
        if count and not rest:
            return f"{count}{unit}"
    seconds, fraction = divmod(value, timedelta(seconds=1))
    return f"{seconds}.{fraction.microseconds:06}".rstrip("0").rstrip(".") + "s"


def parse_window(text: str) -> timedelta | str:
    """Return the duration, or the share of ``50%`` as text. Raises ValueError."""
    return as_share(text) if "%" in text else parse_duration(text)


def parse_instant(text: str, *, direction: int = 1) -> TypedInstant:
    """Return the instant of ``2026-11-22T09:00``, ``2026-11-22T09:00Z`` or a duration.

    A duration counts from now (``direction`` 1) or back from now (-1). A time of day, ``09:00``, is
    possible for -1. Raises ValueError.
    """
    if direction < 0 and _TIME_OF_DAY.fullmatch(text.strip()):
        text = text.strip()
        return TypedInstant(time(int(text[:-3]), int(text[-2:])))
    try:
        return TypedInstant(datetime.fromisoformat(text.strip()))
    except ValueError:
        pass
    try:
        return TypedInstant(direction * parse_duration(text))
    except ValueError:
        where = "before now" if direction < 0 else "from now"
        raise ValueError(
            f"{shorten(text)} is not a time: write 2026-11-22T09:00 (in the owner's time zone),"
            f" 2026-11-22T09:00Z, or a duration {where} such as 30m, 2h or 1d"
        ) from None


_TIME_OF_DAY = re.compile(r"([01]?[0-9]|2[0-3]):[0-5][0-9]")
_FLAG_WORDS = {"yes": True, "true": True, "no": False, "false": False}
_MAX_DIGITS = 20


def parse_flag(name: str, text: str) -> bool:
    """Return the value of the argument ``name``: yes, no, true or false. Raises ValueError."""
    if text.lower() not in _FLAG_WORDS:
        raise ValueError(f"{name} = {shorten(text)}: write yes or no")
    return _FLAG_WORDS[text.lower()]


def parse_retry(text: str) -> Retry:
    """Return the policy of ``3`` or ``max_retries=3, backoff=5m, factor=2``. Raises ValueError."""
    given: dict[str, object] = {}
    for part in re.split(r"[,\s]+", re.sub(r"\s*=\s*", "=", text.strip(" ,\t\n"))):
        name, separator, value = part.partition("=")
        if not separator:
            name, value = "max_retries", part
        name = name.replace("-", "_")
        if name in given:
            raise ValueError(f"{shorten(text)}: {name} is given twice")
        given[name] = _retry_value(name, value)
    return Retry.from_json(given)


def _retry_value(name: str, text: str) -> object:
    if name in {"backoff", "backoff_max"}:
        return parse_duration(text)
    if name == "until_next_fire":
        return parse_flag(name, text)
    if name not in {"max_retries", "factor"}:
        # Retry names the arguments that exist.
        return text
    try:
        return int(text) if text.isdecimal() and len(text) < _MAX_DIGITS else float(text)
    except ValueError:
        raise ValueError(
            f"{shorten(text)} is not a number: write how many retries, such as 3, or arguments of "
            "Retry, such as 'max_retries=3, backoff=5m, factor=2'"
        ) from None


def format_retry(retry: Retry) -> str:
    """Return ``max_retries=3, backoff=5m, factor=2``, which ``parse_retry`` reads back exactly."""
    if retry == Retry(max_retries=0):
        return "0"
    parts = [
        f"max_retries={retry.max_retries}",
        f"backoff={format_duration(retry.backoff)}",
        f"factor={retry.factor!r}".removesuffix(".0"),
    ]
    if retry.backoff_max is not None:
        parts.append(f"backoff_max={format_duration(retry.backoff_max)}")
    if retry.until_next_fire:
        parts.append("until_next_fire=yes")
    return ", ".join(parts)
