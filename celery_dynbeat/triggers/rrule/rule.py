"""Parse and format one RRULE line of RFC 5545, section 3.3.10."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime
from enum import IntEnum

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import WEEKDAYS, shorten

#: Monday at index 0.
WEEKDAY_CODES = tuple(name[:2].upper() for name in WEEKDAYS)
#: Each occurrence is visited once, when a rule is prepared.
MAX_COUNT = 1_000
#: More than eleven days of seconds.
_MAX_INTERVAL = 1_000_000
_WEEKDAY = re.compile(r"([+-]?\d{1,2})?(MO|TU|WE|TH|FR|SA|SU)", re.ASCII)
_NUMBER = re.compile(r"[+-]?\d{1,9}", re.ASCII)
_DIGITS = re.compile(r"\d{1,9}", re.ASCII)
_WEEKS_PER_MONTH = 5


class Freq(IntEnum):
    """The unit by which a rule repeats, longest first."""

    YEARLY = 0
    MONTHLY = 1
    WEEKLY = 2
    DAILY = 3
    HOURLY = 4
    MINUTELY = 5
    SECONDLY = 6


@dataclass(frozen=True, slots=True)
class PartRange:
    """The values of a BY part that takes numbers, and the FREQ with which it is allowed."""

    low: int
    high: int
    negative: bool = False
    freqs: tuple[Freq, ...] = tuple(Freq)


# RFC 5545 section 3.3.10: BYWEEKNO "MUST NOT be used when the FREQ rule part is set to anything
# other than YEARLY", BYYEARDAY not with DAILY, WEEKLY and MONTHLY, BYMONTHDAY not with WEEKLY.
_SUB_DAILY = (Freq.HOURLY, Freq.MINUTELY, Freq.SECONDLY)
_PARTS = {
    "BYMONTH": PartRange(1, 12),
    "BYWEEKNO": PartRange(1, 53, negative=True, freqs=(Freq.YEARLY,)),
    "BYYEARDAY": PartRange(1, 366, negative=True, freqs=(Freq.YEARLY, *_SUB_DAILY)),
    "BYMONTHDAY": PartRange(
        1, 31, negative=True, freqs=(Freq.YEARLY, Freq.MONTHLY, Freq.DAILY, *_SUB_DAILY)
    ),
    "BYHOUR": PartRange(0, 23),
    "BYMINUTE": PartRange(0, 59),
    "BYSECOND": PartRange(0, 59),
    "BYSETPOS": PartRange(1, 366, negative=True),
}
Numbers = tuple[int, ...]
KNOWN = ("FREQ", "INTERVAL", "COUNT", "UNTIL", *_PARTS, "BYDAY", "WKST")


@dataclass(frozen=True, slots=True)
class RecurrenceRule:
    """One RRULE. Weekdays count from Monday = 0. An empty tuple means that a part is missing.

    ``until`` is naive if it is a wall time, aware if it is an instant. ``byday`` holds pairs of a
    weekday and its number in the period; number 0 means every one.
    """

    freq: Freq
    interval: int = 1
    count: int | None = None
    until: datetime | None = None
    bymonth: tuple[int, ...] = ()
    byweekno: tuple[int, ...] = ()
    byyearday: tuple[int, ...] = ()
    bymonthday: tuple[int, ...] = ()
    byday: tuple[tuple[int, int], ...] = ()
    byhour: tuple[int, ...] = ()
    byminute: tuple[int, ...] = ()
    bysecond: tuple[int, ...] = ()
    bysetpos: tuple[int, ...] = ()
    wkst: int = 0

    @property
    def clock(self) -> tuple[Numbers, Numbers, Numbers]:
        """Return BYHOUR, BYMINUTE and BYSECOND."""
        return self.byhour, self.byminute, self.bysecond

    @property
    def is_plain(self) -> bool:
        """Whether there are no BY parts."""
        days = self.bymonth or self.byweekno or self.byyearday or self.bymonthday or self.byday
        return not (days or any(self.clock) or self.bysetpos)

    @property
    def times(self) -> int:
        """Return the number of listed times in a day, hour or minute."""
        listed = self.clock[max(self.freq - Freq.DAILY, 0) :]
        return math.prod(max(len(numbers), 1) for numbers in listed)


def parse_rule(text: str, *, parse_until: Callable[[str], datetime]) -> RecurrenceRule:
    """Return the rule for ``FREQ=WEEKLY;BYDAY=MO``.

    Raises ``InvalidTriggerError`` for the invalid part.
    """
    parts = _split(text)
    freq = _parse_freq(parts)
    numbers = {name: _parse_numbers(name, parts.get(name), freq) for name in _PARTS}
    return RecurrenceRule(
        freq,
        interval=_parse_positive("INTERVAL", parts.get("INTERVAL", "1")),
        count=_parse_count(parts),
        until=parse_until(parts["UNTIL"]) if "UNTIL" in parts else None,
        bymonth=numbers["BYMONTH"],
        byweekno=numbers["BYWEEKNO"],
        byyearday=numbers["BYYEARDAY"],
        bymonthday=numbers["BYMONTHDAY"],
        byday=_parse_weekdays(parts, freq),
        byhour=numbers["BYHOUR"],
        byminute=numbers["BYMINUTE"],
        bysecond=numbers["BYSECOND"],
        bysetpos=numbers["BYSETPOS"],
        wkst=_parse_week_start(parts.get("WKST", "MO")),
    )


def format_moment(moment: datetime, *, suffix: str = "") -> str:
    """Return ``20260105T090000``, followed by Z for an instant, by ``suffix`` for a wall time."""
    return f"{moment:%Y%m%dT%H%M%S}{suffix if moment.tzinfo is None else 'Z'}"


def format_rule(rule: RecurrenceRule, *, suffix: str = "") -> str:
    """Return the text of a rule: FREQ first, numbers sorted, no default values."""
    parts = [f"FREQ={rule.freq.name}"]
    parts += [f"INTERVAL={rule.interval}"] if rule.interval > 1 else []
    parts += [f"COUNT={rule.count}"] if rule.count is not None else []
    parts += [f"UNTIL={format_moment(rule.until, suffix=suffix)}"] if rule.until is not None else []
    for field in fields(rule):
        numbers = getattr(rule, field.name)
        if field.name == "byday" and numbers:
            days = (f"{number or ''}{WEEKDAY_CODES[weekday]}" for weekday, number in numbers)
            parts.append(f"BYDAY={','.join(days)}")
        elif isinstance(numbers, tuple) and numbers:
            parts.append(f"{field.name.upper()}={','.join(map(str, numbers))}")
    parts += [f"WKST={WEEKDAY_CODES[rule.wkst]}"] if rule.wkst else []
    return ";".join(parts)


def invalid_part(field: str, value: object, reason: str) -> InvalidTriggerError:
    """Return the error for one part of the text, in the terms of the RFC."""
    return InvalidTriggerError(f"{field.upper()} {shorten(value)}: {reason}", field=field)


def _split(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in text.rstrip(";").split(";"):
        name, equals, value = part.partition("=")
        if not equals:
            raise invalid_part("rrule", part, "a part looks like NAME=value, e.g. FREQ=WEEKLY")
        if name in parts:
            raise invalid_part(
                name.lower(), value, "given twice; list its values, as in BYDAY=MO,TU"
            )
        if name == "BYEASTER":
            raise invalid_part(
                "byeaster", value, "RFC 5545 has no Easter; list the dates with RDATE"
            )
        if name not in KNOWN:
            raise invalid_part("rrule", part, f"unknown part; RFC 5545 has {', '.join(KNOWN)}")
        parts[name] = value
    return parts


def _parse_freq(parts: dict[str, str]) -> Freq:
    name = parts.get("FREQ")
    if name is None:
        raise invalid_part("freq", "", "missing; begin with one, e.g. FREQ=WEEKLY")
    if name not in Freq.__members__:
        raise invalid_part("freq", name, f"must be one of {', '.join(Freq.__members__)}")
    return Freq[name]


def _parse_numbers(name: str, text: str | None, freq: Freq) -> tuple[int, ...]:
    part, field = _PARTS[name], name.lower()
    if text is None:
        return ()
    if freq not in part.freqs:
        allowed = ", ".join(one.name for one in part.freqs)
        raise invalid_part(
            field, text, f"RFC 5545 allows it with FREQ={allowed} only, not {freq.name}"
        )
    if not text:
        raise invalid_part(field, text, f"has no value; write {name}={part.low} or leave it out")
    numbers = set()
    for item in text.split(","):
        number = int(item) if _NUMBER.fullmatch(item) else None
        size = number if number is None or not part.negative else abs(number)
        if number is None or size is None or not part.low <= size <= part.high:
            signed = ", or the same from the end with a minus" if part.negative else ""
            reason = f"{shorten(item)} must be a number from {part.low} to {part.high}{signed}"
            raise invalid_part(field, text, reason)
        numbers.add(number)
    return tuple(sorted(numbers))


def _parse_weekdays(parts: dict[str, str], freq: Freq) -> tuple[tuple[int, int], ...]:
    text = parts.get("BYDAY")
    if text is None:
        return ()
    within_month = freq is Freq.MONTHLY or "BYMONTH" in parts
    most = _WEEKS_PER_MONTH if within_month else 53
    days = set()
    for item in text.split(","):
        match = _WEEKDAY.fullmatch(item)
        if match is None:
            raise invalid_part(
                "byday", text, f"{shorten(item)} must be a weekday such as MO or -1FR"
            )
        number = int(match[1] or 0)
        if match[1] and (freq > Freq.MONTHLY or "BYWEEKNO" in parts):
            reason = "a weekday has a number only with FREQ=MONTHLY, or YEARLY without BYWEEKNO"
            raise invalid_part("byday", text, reason)
        if match[1] and not 1 <= abs(number) <= most:
            raise invalid_part(
                "byday", text, f"{item} must count from 1 to {most}, or from -1 to -{most}"
            )
        days.add((WEEKDAY_CODES.index(match[2]), number))
    return tuple(sorted(days))


def _parse_week_start(text: str) -> int:
    if text not in WEEKDAY_CODES:
        raise invalid_part("wkst", text, f"must be one of {', '.join(WEEKDAY_CODES)}")
    return WEEKDAY_CODES.index(text)


def _parse_positive(name: str, text: str) -> int:
    if not _DIGITS.fullmatch(text) or not 1 <= int(text) <= _MAX_INTERVAL:
        reason = f"must be a number from 1 to {_MAX_INTERVAL}; for more use a longer FREQ"
        raise invalid_part(name.lower(), text, reason)
    return int(text)


def _parse_count(parts: dict[str, str]) -> int | None:
    if "COUNT" not in parts:
        return None
    if "UNTIL" in parts:
        raise invalid_part(
            "count", parts["COUNT"], "COUNT and UNTIL cannot be combined; choose one"
        )
    text = parts["COUNT"]
    if not _DIGITS.fullmatch(text) or not 1 <= int(text) <= MAX_COUNT:
        reason = f"must be from 1 to {MAX_COUNT}; for more set UNTIL, or the schedule's max_runs"
        raise invalid_part("count", text, reason)
    return int(text)
