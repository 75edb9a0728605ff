"""Parse and format recurrence text of RFC 5545: DTSTART, RRULE, RDATE and EXDATE lines.

One RRULE line follows section 3.3.10.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from functools import partial
from zoneinfo import ZoneInfo

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import FIRST_YEAR, LAST_YEAR, WEEKDAYS, shorten
from celery_dynbeat.triggers.base import MAX_RRULE_LENGTH
from celery_dynbeat.triggers.zones import fold_at, load_zone, wall_at

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

    def without_count(self) -> "RecurrenceRule":
        """Return the rule without its COUNT."""
        return replace(self, count=None)

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
    numbers = {name.lower(): _parse_numbers(name, parts.get(name), freq) for name in _PARTS}
    return RecurrenceRule(
        freq,
        interval=_parse_positive("INTERVAL", parts.get("INTERVAL", "1")),
        count=_parse_count(parts),
        until=parse_until(parts["UNTIL"]) if "UNTIL" in parts else None,
        byday=_parse_weekdays(parts, freq),
        wkst=_parse_week_start(parts.get("WKST", "MO")),
        **numbers,
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


_MAX_RULES = 20
# Any midnight, to round to whole minutes and seconds.
_MIDNIGHT = datetime(2000, 1, 1)  # noqa: DTZ001 - a time of the wall clock
_NAMES = ("DTSTART", "RRULE", "RDATE", "EXDATE")
# RFC 5545 section 3.1 folds a line with a line break and one blank. A text that is indented in the
# source code of a program is not folded, because its blanks precede the name of a line.
_FOLDED = re.compile(
    r"\r?\n[ \t](?![ \t]*(?:DTSTART|RRULE|RDATE|EXDATE|EXRULE|FREQ)\b)", re.IGNORECASE
)
_TIME = re.compile(r"(\d{8})(?:T(\d{6})(Z?))?", re.ASCII)
_HINTS = {
    "EXRULE": "RFC 5545 dropped it; list the dates with EXDATE",
    "DURATION": "a trigger has no duration; leave it out",
    "DTEND": "a trigger has no end; leave it out, or use UNTIL",
}
_KNOWN_LINES = (
    "only DTSTART, RRULE, RDATE and EXDATE belong here; zones are names of the tz database"
)


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The values of a recurrence text. Naive datetimes are wall times of ``zone``.

    Aware datetimes are in UTC. ``zone`` is None if nothing names a zone.
    """

    dtstart: datetime | None
    zone: str | None
    rules: tuple[RecurrenceRule, ...]
    rdates: tuple[datetime, ...]
    exdates: tuple[datetime, ...]

    @property
    def text(self) -> str:
        """Return text that parses to an equal recurrence. It has the zone if it has DTSTART."""
        suffix = "Z" if self.dtstart and self.zone == "UTC" else ""
        parameter = f";TZID={self.zone}" if self.dtstart and self.zone and not suffix else ""
        written = partial(format_moment, suffix=suffix)
        lines = [f"DTSTART{parameter}:{written(self.dtstart)}"] if self.dtstart else []
        lines += [f"RRULE:{format_rule(rule, suffix=suffix)}" for rule in self.rules]
        for name, moments in (("RDATE", self.rdates), ("EXDATE", self.exdates)):
            walls = ",".join(written(moment) for moment in moments if moment.tzinfo is None)
            instants = ",".join(written(moment) for moment in moments if moment.tzinfo is not None)
            lines += [f"{name}{parameter}:{walls}"] if walls else []
            lines += [f"{name}:{instants}"] if instants else []
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    tzid: str | None
    is_date: bool
    value: str


def parse_recurrence(text: str, *, timezone: str | None) -> Recurrence:
    """Return the recurrence of a text. A text that names no zone uses ``timezone``.

    Case, blank lines, folded lines and the order of lines do not matter, and ``RRULE:`` may be
    missing. Raises ``InvalidTriggerError`` for the invalid part.
    """
    if len(text) > MAX_RRULE_LENGTH:
        message = (
            f"{shorten(text)} has {len(text)} characters; at most {MAX_RRULE_LENGTH} are allowed"
        )
        raise InvalidTriggerError(message, field="rrule")
    lines = [_parse_line(word) for word in _FOLDED.sub("", text).split()]
    rules = list(dict.fromkeys(line.value for line in lines if line.name == "RRULE"))
    if not 1 <= len(rules) <= _MAX_RULES:
        reason = f"there must be 1 to {_MAX_RULES} rules, such as RRULE:FREQ=WEEKLY;BYDAY=MO"
        raise invalid_part("rrule", text, reason)
    dtstart, zone = _parse_dtstart([line for line in lines if line.name == "DTSTART"], timezone)
    until = partial(_parse_until, zone=zone)
    return Recurrence(
        dtstart,
        zone,
        tuple(dict.fromkeys(parse_rule(rule, parse_until=until) for rule in rules)),
        _parse_dates(lines, "RDATE", zone=zone, dtstart=dtstart),
        _parse_dates(lines, "EXDATE", zone=zone, dtstart=dtstart),
    )


def anchored(recurrence: Recurrence, instant: datetime) -> Recurrence:
    """Return the recurrence counting from the first wall time at or after ``instant``.

    The time is rounded up to whole minutes, or to whole seconds if a rule repeats by the second.
    """
    zone = recurrence.zone or "UTC"
    by_second = any(rule.freq is Freq.SECONDLY for rule in recurrence.rules)
    unit = timedelta(seconds=1) if by_second else timedelta(minutes=1)
    fold = fold_at(load_zone(zone), instant)
    # A repeated wall time means its first occurrence, which is past in the second pass.
    wall = fold.end if fold and fold.second_pass else wall_at(load_zone(zone), instant)
    return replace(recurrence, dtstart=wall + (_MIDNIGHT - wall) % unit, zone=zone)


def instant_of(zone: ZoneInfo, moment: datetime) -> datetime:
    """Return the instant of a wall time in ``zone``, or ``moment`` itself if it is aware.

    RFC 5545 section 3.3.5: a repeated time means its first occurrence, and a skipped time is read
    with the offset before the gap. Python does both for ``fold=0``.
    """
    if moment.tzinfo is not None:
        return moment
    return moment.replace(tzinfo=zone).astimezone(UTC)


def _parse_line(word: str) -> _Line:
    head, colon, value = word.partition(":")
    name, *parameters = head.split(";") if colon else ["RRULE"]
    name = name.upper()
    if not colon:
        value = word
        if ";TZID=" in word.upper():
            reason = "names of the tz database have no spaces, such as Asia/Seoul"
            raise invalid_part("timezone", word, reason)
    if name not in _NAMES:
        field = name.lower() if name in _HINTS else "rrule"
        raise invalid_part(field, word, _HINTS.get(name, _KNOWN_LINES))
    tzid, is_date = None, False
    for parameter in parameters:
        key, _, content = parameter.partition("=")
        if key.upper() == "TZID" and name != "RRULE" and tzid is None:
            tzid = content.strip('"')
            load_zone(tzid)
        elif parameter.upper() in {"VALUE=DATE", "VALUE=DATE-TIME"} and name != "RRULE":
            is_date = parameter.upper() == "VALUE=DATE"
        else:
            raise invalid_part(
                name.lower(), word, f"parameter {shorten(parameter)} is unknown here"
            )
    return _Line(name, tzid, is_date, value.upper())


def _parse_dtstart(lines: list[_Line], timezone: str | None) -> tuple[datetime | None, str | None]:
    if not lines:
        return None, timezone
    if len(lines) > 1:
        raise invalid_part("dtstart", lines[1].value, "given twice; a trigger has one DTSTART")
    line = lines[0]
    wall = _parse_moment(line.value, "dtstart")
    if wall.tzinfo is None:
        return wall, line.tzid or timezone
    if line.tzid is not None:
        raise invalid_part("dtstart", line.value, "has a TZID and a Z; leave one of them out")
    return wall.replace(tzinfo=None), "UTC"


def _parse_dates(
    lines: Iterable[_Line], name: str, *, zone: str | None, dtstart: datetime | None
) -> tuple[datetime, ...]:
    field, moments = name.lower(), set()
    for line in (line for line in lines if line.name == name):
        for value in line.value.split(","):
            moment = _parse_moment(value, field)
            if "T" not in value and dtstart and dtstart.time() != dtstart.time().min:
                reason = f"DTSTART has a time, so this needs one: {value}T{dtstart:%H%M%S}"
                raise invalid_part(field, value, reason)
            if line.tzid is not None and moment.tzinfo is not None:
                raise invalid_part(field, value, "has a TZID and a Z; leave one of them out")
            if line.tzid not in {None, zone}:
                moment = instant_of(load_zone(line.tzid or "UTC"), moment)
            moments.add(_in_zone(moment, zone))
    return tuple(sorted(moments, key=lambda moment: (moment.tzinfo is not None, moment)))


def _parse_until(text: str, *, zone: str | None) -> datetime:
    moment = _parse_moment(text, "until")
    return moment.replace(tzinfo=None) if zone == "UTC" else moment


def _in_zone(moment: datetime, zone: str | None) -> datetime:
    """Return an instant as a wall time of ``zone``, if that wall time means this instant."""
    if zone is None or moment.tzinfo is None:
        return moment
    wall = wall_at(load_zone(zone), moment)
    return wall if instant_of(load_zone(zone), wall) == moment else moment


def _parse_moment(text: str, field: str) -> datetime:
    """Return a wall time, or an instant in UTC if ``text`` ends with Z."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise invalid_part(
            field, text, "must look like 20260105T090000, in UTC with a Z at the end"
        )
    digits = f"{match[1]}{match[2] or '000000'}"
    year = int(digits[:4])
    month, day, hour, minute, second = (int(digits[at : at + 2]) for at in range(4, 14, 2))
    try:
        moment = datetime(year, month, day, hour, minute, second)  # noqa: DTZ001 - a wall time
    except ValueError as error:
        raise invalid_part(field, text, f"this time does not exist: {error}") from error
    if not FIRST_YEAR < moment.year < LAST_YEAR:
        raise invalid_part(field, text, f"the year must lie between {FIRST_YEAR} and {LAST_YEAR}")
    return moment.replace(tzinfo=UTC) if match[3] else moment
