"""The parts of one RRULE line, as RFC 5545 section 3.3.10 defines them, to values and back."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime
from enum import IntEnum

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten

WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
#: Each occurrence is walked once, when a rule is made ready.
MOST_COUNT = 1_000
#: More than eleven days of seconds.
_MOST_INTERVAL = 1_000_000
_WEEKDAY = re.compile(r"([+-]?\d{1,2})?(MO|TU|WE|TH|FR|SA|SU)", re.ASCII)
_NUMBER = re.compile(r"[+-]?\d{1,9}", re.ASCII)
_DIGITS = re.compile(r"\d{1,9}", re.ASCII)
_WEEKS_A_MONTH = 5


class Freq(IntEnum):
    """What a rule repeats by, longest first."""

    YEARLY = 0
    MONTHLY = 1
    WEEKLY = 2
    DAILY = 3
    HOURLY = 4
    MINUTELY = 5
    SECONDLY = 6


@dataclass(frozen=True, slots=True)
class Part:
    """A BY part made of numbers: its bounds, whether they may be negative, where it is allowed."""

    low: int
    high: int
    negative: bool = False
    freqs: tuple[Freq, ...] = tuple(Freq)


# RFC 5545 section 3.3.10: BYWEEKNO "MUST NOT be used when the FREQ rule part is set to anything
# other than YEARLY", BYYEARDAY not with DAILY, WEEKLY and MONTHLY, BYMONTHDAY not with WEEKLY.
_SUB_DAILY = (Freq.HOURLY, Freq.MINUTELY, Freq.SECONDLY)
_PARTS = {
    "BYMONTH": Part(1, 12),
    "BYWEEKNO": Part(1, 53, negative=True, freqs=(Freq.YEARLY,)),
    "BYYEARDAY": Part(1, 366, negative=True, freqs=(Freq.YEARLY, *_SUB_DAILY)),
    "BYMONTHDAY": Part(
        1, 31, negative=True, freqs=(Freq.YEARLY, Freq.MONTHLY, Freq.DAILY, *_SUB_DAILY)
    ),
    "BYHOUR": Part(0, 23),
    "BYMINUTE": Part(0, 59),
    "BYSECOND": Part(0, 59),
    "BYSETPOS": Part(1, 366, negative=True),
}
Numbers = tuple[int, ...]
KNOWN = ("FREQ", "INTERVAL", "COUNT", "UNTIL", *_PARTS, "BYDAY", "WKST")


@dataclass(frozen=True, slots=True)
class Rule:
    """One RRULE. Weekdays count from Monday = 0; an empty tuple stands for a part not given.

    ``until`` is naive when it is a time of the wall clock, aware when it is an instant.
    ``byday`` holds pairs of a weekday and its number in the period, 0 for every one.
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
        """Whether it has no BY parts."""
        days = self.bymonth or self.byweekno or self.byyearday or self.bymonthday or self.byday
        return not (days or any(self.clock) or self.bysetpos)

    @property
    def times(self) -> int:
        """Return how many times of day, of an hour or of a minute it lists."""
        listed = self.clock[max(self.freq - Freq.DAILY, 0) :]
        return math.prod(max(len(numbers), 1) for numbers in listed)


def parse_rule(text: str, *, parse_until: Callable[[str], datetime]) -> Rule:
    """Read ``FREQ=WEEKLY;BYDAY=MO``; raise ``InvalidTriggerError`` for the part at fault."""
    parts = _split(text)
    freq = _freq(parts)
    numbers = {name: _numbers(name, parts.get(name), freq) for name in _PARTS}
    return Rule(
        freq,
        interval=_positive("INTERVAL", parts.get("INTERVAL", "1")),
        count=_count(parts),
        until=parse_until(parts["UNTIL"]) if "UNTIL" in parts else None,
        bymonth=numbers["BYMONTH"],
        byweekno=numbers["BYWEEKNO"],
        byyearday=numbers["BYYEARDAY"],
        bymonthday=numbers["BYMONTHDAY"],
        byday=_weekdays(parts, freq),
        byhour=numbers["BYHOUR"],
        byminute=numbers["BYMINUTE"],
        bysecond=numbers["BYSECOND"],
        bysetpos=numbers["BYSETPOS"],
        wkst=_week_start(parts.get("WKST", "MO")),
    )


def format_moment(moment: datetime, *, suffix: str = "") -> str:
    """Return a time as ``20260105T090000``: an instant with a Z, a wall time with ``suffix``."""
    return f"{moment:%Y%m%dT%H%M%S}{suffix if moment.tzinfo is None else 'Z'}"


def format_rule(rule: Rule, *, suffix: str = "") -> str:
    """Return the rule's text: FREQ first, numbers sorted, nothing that says the default."""
    parts = [f"FREQ={rule.freq.name}"]
    parts += [f"INTERVAL={rule.interval}"] if rule.interval > 1 else []
    parts += [f"COUNT={rule.count}"] if rule.count is not None else []
    parts += [f"UNTIL={format_moment(rule.until, suffix=suffix)}"] if rule.until is not None else []
    for field in fields(rule):
        numbers = getattr(rule, field.name)
        if field.name == "byday" and numbers:
            days = (f"{number or ''}{WEEKDAYS[weekday]}" for weekday, number in numbers)
            parts.append(f"BYDAY={','.join(days)}")
        elif isinstance(numbers, tuple) and numbers:
            parts.append(f"{field.name.upper()}={','.join(map(str, numbers))}")
    parts += [f"WKST={WEEKDAYS[rule.wkst]}"] if rule.wkst else []
    return ";".join(parts)


def refused(field: str, value: object, reason: str) -> InvalidTriggerError:
    """Return the error for one part of the text, in the words of the RFC."""
    return InvalidTriggerError(f"{field.upper()} {shorten(value)}: {reason}", field=field)


def _split(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in text.rstrip(";").split(";"):
        name, equals, value = part.partition("=")
        if not equals:
            raise refused("rrule", part, "a part looks like NAME=value, e.g. FREQ=WEEKLY")
        if name in parts:
            raise refused(name.lower(), value, "given twice; list its values, as in BYDAY=MO,TU")
        if name == "BYEASTER":
            raise refused("byeaster", value, "RFC 5545 has no Easter; list the dates with RDATE")
        if name not in KNOWN:
            raise refused("rrule", part, f"unknown part; RFC 5545 has {', '.join(KNOWN)}")
        parts[name] = value
    return parts


def _freq(parts: dict[str, str]) -> Freq:
    name = parts.get("FREQ")
    if name is None:
        raise refused("freq", "", "missing; begin with one, e.g. FREQ=WEEKLY")
    if name not in Freq.__members__:
        raise refused("freq", name, f"must be one of {', '.join(Freq.__members__)}")
    return Freq[name]


def _numbers(name: str, text: str | None, freq: Freq) -> tuple[int, ...]:
    part, field = _PARTS[name], name.lower()
    if text is None:
        return ()
    if freq not in part.freqs:
        allowed = ", ".join(one.name for one in part.freqs)
        raise refused(field, text, f"RFC 5545 allows it with FREQ={allowed} only, not {freq.name}")
    if not text:
        raise refused(field, text, f"has no value; write {name}={part.low} or leave it out")
    numbers = set()
    for item in text.split(","):
        number = int(item) if _NUMBER.fullmatch(item) else None
        size = number if number is None or not part.negative else abs(number)
        if number is None or size is None or not part.low <= size <= part.high:
            signed = ", or the same from the end with a minus" if part.negative else ""
            reason = f"{shorten(item)} must be a number from {part.low} to {part.high}{signed}"
            raise refused(field, text, reason)
        numbers.add(number)
    return tuple(sorted(numbers))


def _weekdays(parts: dict[str, str], freq: Freq) -> tuple[tuple[int, int], ...]:
    text = parts.get("BYDAY")
    if text is None:
        return ()
    within_month = freq is Freq.MONTHLY or "BYMONTH" in parts
    most = _WEEKS_A_MONTH if within_month else 53
    days = set()
    for item in text.split(","):
        match = _WEEKDAY.fullmatch(item)
        if match is None:
            raise refused("byday", text, f"{shorten(item)} must be a weekday such as MO or -1FR")
        number = int(match[1] or 0)
        if match[1] and (freq > Freq.MONTHLY or "BYWEEKNO" in parts):
            reason = "a weekday has a number only with FREQ=MONTHLY, or YEARLY without BYWEEKNO"
            raise refused("byday", text, reason)
        if match[1] and not 1 <= abs(number) <= most:
            raise refused(
                "byday", text, f"{item} must count from 1 to {most}, or from -1 to -{most}"
            )
        days.add((WEEKDAYS.index(match[2]), number))
    return tuple(sorted(days))


def _week_start(text: str) -> int:
    if text not in WEEKDAYS:
        raise refused("wkst", text, f"must be one of {', '.join(WEEKDAYS)}")
    return WEEKDAYS.index(text)


def _positive(name: str, text: str) -> int:
    if not _DIGITS.fullmatch(text) or not 1 <= int(text) <= _MOST_INTERVAL:
        reason = f"must be a number from 1 to {_MOST_INTERVAL}; for more take a longer FREQ"
        raise refused(name.lower(), text, reason)
    return int(text)


def _count(parts: dict[str, str]) -> int | None:
    if "COUNT" not in parts:
        return None
    if "UNTIL" in parts:
        raise refused("count", parts["COUNT"], "COUNT and UNTIL exclude each other; choose one")
    text = parts["COUNT"]
    if not _DIGITS.fullmatch(text) or not 1 <= int(text) <= MOST_COUNT:
        reason = f"must be from 1 to {MOST_COUNT}; for more set UNTIL, or the schedule's max_runs"
        raise refused("count", text, reason)
    return int(text)
