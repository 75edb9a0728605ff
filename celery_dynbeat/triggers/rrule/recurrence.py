"""Parse and format recurrence text of RFC 5545: DTSTART, RRULE, RDATE and EXDATE lines."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from zoneinfo import ZoneInfo

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import FIRST_YEAR, LAST_YEAR, shorten
from celery_dynbeat.triggers.base import MAX_RRULE_LENGTH
from celery_dynbeat.triggers.rrule.rule import (
    Freq,
    RecurrenceRule,
    format_moment,
    format_rule,
    invalid_part,
    parse_rule,
)
from celery_dynbeat.triggers.zones import fold_at, load_zone, wall_at

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
