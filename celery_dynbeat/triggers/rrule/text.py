"""Recurrence text of RFC 5545: the lines DTSTART, RRULE, RDATE and EXDATE, to values and back."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from zoneinfo import ZoneInfo

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.triggers.limits import MAX_RRULE
from celery_dynbeat.triggers.rrule.parts import (
    Freq,
    Rule,
    format_moment,
    format_rule,
    parse_rule,
    refused,
)
from celery_dynbeat.triggers.zones import fold_at, lookup, wall_at

#: Where a search begins and ends: far enough from the ends of datetime, like those of ``Cron``.
FIRST_YEAR, LAST_YEAR = 1900, 9899
_MOST_RULES = 20
# Any will do, to round by.
_MIDNIGHT = datetime(2000, 1, 1)  # noqa: DTZ001 - a time of the wall clock
_NAMES = ("DTSTART", "RRULE", "RDATE", "EXDATE")
# RFC 5545 section 3.1 folds a line by a line break and one blank. Text that is merely indented in
# a program begins with the name of a line instead.
_FOLDED = re.compile(
    r"\r?\n[ \t](?![ \t]*(?:DTSTART|RRULE|RDATE|EXDATE|EXRULE|FREQ)\b)", re.IGNORECASE
)
_TIME = re.compile(r"(\d{8})(?:T(\d{6})(Z?))?", re.ASCII)
_HINTS = {
    "EXRULE": "RFC 5545 dropped it; list the dates with EXDATE",
    "DURATION": "a trigger has no duration; leave it out",
    "DTEND": "a trigger has no end of its own; leave it out, or use UNTIL",
}
_LIMITED = "only DTSTART, RRULE, RDATE and EXDATE belong here; zones are names of the tz database"


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A recurrence text, read. Naive datetimes show the wall clock of ``zone``; aware ones are UTC.

    ``zone`` is None when nothing names one.
    """

    dtstart: datetime | None
    zone: str | None
    rules: tuple[Rule, ...]
    rdates: tuple[datetime, ...]
    exdates: tuple[datetime, ...]

    @property
    def text(self) -> str:
        """Return the text that gives an equal recurrence, with the zone if DTSTART is there."""
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
    """Read recurrence text; ``timezone`` is the zone of a text that names none.

    Forgiving about case, blank lines, folded lines, order, and a rule without ``RRULE:``. Raises
    ``InvalidTriggerError`` for the part at fault.
    """
    if len(text) > MAX_RRULE:
        message = f"{shorten(text)} has {len(text)} characters; at most {MAX_RRULE} are allowed"
        raise InvalidTriggerError(message, field="rrule")
    lines = [_line(word) for word in _FOLDED.sub("", text).split()]
    rules = list(dict.fromkeys(line.value for line in lines if line.name == "RRULE"))
    if not 1 <= len(rules) <= _MOST_RULES:
        reason = f"there must be 1 to {_MOST_RULES} rules, such as RRULE:FREQ=WEEKLY;BYDAY=MO"
        raise refused("rrule", text, reason)
    dtstart, zone = _dtstart([line for line in lines if line.name == "DTSTART"], timezone)
    until = partial(_until, zone=zone)
    return Recurrence(
        dtstart,
        zone,
        tuple(dict.fromkeys(parse_rule(rule, parse_until=until) for rule in rules)),
        _dates(lines, "RDATE", zone=zone, dtstart=dtstart),
        _dates(lines, "EXDATE", zone=zone, dtstart=dtstart),
    )


def anchored(recurrence: Recurrence, instant: datetime) -> Recurrence:
    """Return the recurrence counting from the first wall time that is not before ``instant``.

    In whole minutes, unless it repeats by the second: who says 9 o'clock means no seconds.
    """
    zone = recurrence.zone or "UTC"
    by_second = any(rule.freq is Freq.SECONDLY for rule in recurrence.rules)
    unit = timedelta(seconds=1) if by_second else timedelta(minutes=1)
    fold = fold_at(lookup(zone), instant)
    # A wall time that occurs twice means its first occurrence, which has passed by then.
    wall = fold.end if fold and fold.second_pass else wall_at(lookup(zone), instant)
    return replace(recurrence, dtstart=wall + (_MIDNIGHT - wall) % unit, zone=zone)


def instant_of(zone: ZoneInfo, moment: datetime) -> datetime:
    """Return the instant of a wall time in ``zone``; of an aware moment, that moment.

    RFC 5545 section 3.3.5: a time that happens twice is its first occurrence; one that the clock
    skips is read with the offset from before the gap. Both are the reading of ``fold=0``.
    """
    if moment.tzinfo is not None:
        return moment
    return moment.replace(tzinfo=zone).astimezone(UTC)


def _line(word: str) -> _Line:
    head, colon, value = word.partition(":")
    name, *parameters = head.split(";") if colon else ["RRULE"]
    name = name.upper()
    if not colon:
        value = word
        if ";TZID=" in word.upper():
            reason = "names of the tz database have no spaces, such as Asia/Seoul"
            raise refused("timezone", word, reason)
    if name not in _NAMES:
        field = name.lower() if name in _HINTS else "rrule"
        raise refused(field, word, _HINTS.get(name, _LIMITED))
    tzid, is_date = None, False
    for parameter in parameters:
        key, _, content = parameter.partition("=")
        if key.upper() == "TZID" and name != "RRULE" and tzid is None:
            tzid = content.strip('"')
            lookup(tzid)
        elif parameter.upper() in {"VALUE=DATE", "VALUE=DATE-TIME"} and name != "RRULE":
            is_date = parameter.upper() == "VALUE=DATE"
        else:
            raise refused(name.lower(), word, f"parameter {shorten(parameter)} is not known here")
    return _Line(name, tzid, is_date, value.upper())


def _dtstart(lines: list[_Line], timezone: str | None) -> tuple[datetime | None, str | None]:
    if not lines:
        return None, timezone
    if len(lines) > 1:
        raise refused("dtstart", lines[1].value, "given twice; a trigger has one beginning")
    line = lines[0]
    wall = _moment(line.value, "dtstart")
    if wall.tzinfo is None:
        return wall, line.tzid or timezone
    if line.tzid is not None:
        raise refused("dtstart", line.value, "has a TZID and a Z; leave one of them out")
    return wall.replace(tzinfo=None), "UTC"


def _dates(
    lines: Iterable[_Line], name: str, *, zone: str | None, dtstart: datetime | None
) -> tuple[datetime, ...]:
    field, moments = name.lower(), set()
    for line in (line for line in lines if line.name == name):
        for value in line.value.split(","):
            moment = _moment(value, field)
            if "T" not in value and dtstart and dtstart.time() != dtstart.time().min:
                reason = f"DTSTART has a time, so this needs it too: {value}T{dtstart:%H%M%S}"
                raise refused(field, value, reason)
            if line.tzid is not None and moment.tzinfo is not None:
                raise refused(field, value, "has a TZID and a Z; leave one of them out")
            if line.tzid not in {None, zone}:
                moment = instant_of(lookup(line.tzid or "UTC"), moment)
            moments.add(_in_zone(moment, zone))
    return tuple(sorted(moments, key=lambda moment: (moment.tzinfo is not None, moment)))


def _until(text: str, *, zone: str | None) -> datetime:
    moment = _moment(text, "until")
    return moment.replace(tzinfo=None) if zone == "UTC" else moment


def _in_zone(moment: datetime, zone: str | None) -> datetime:
    """Return an instant as the wall time that stands for it in ``zone``, if there is one."""
    if zone is None or moment.tzinfo is None:
        return moment
    wall = wall_at(lookup(zone), moment)
    return wall if instant_of(lookup(zone), wall) == moment else moment


def _moment(text: str, field: str) -> datetime:
    """Return a wall time, or an instant in UTC if the text ends with Z."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise refused(field, text, "must look like 20260105T090000, in UTC with a Z at the end")
    digits = f"{match[1]}{match[2] or '000000'}"
    year = int(digits[:4])
    month, day, hour, minute, second = (int(digits[at : at + 2]) for at in range(4, 14, 2))
    try:
        moment = datetime(year, month, day, hour, minute, second)  # noqa: DTZ001 - a wall time
    except ValueError as error:
        raise refused(field, text, f"no such time: {error}") from error
    if not FIRST_YEAR < moment.year < LAST_YEAR:
        raise refused(field, text, f"the year must lie between {FIRST_YEAR} and {LAST_YEAR}")
    return moment.replace(tzinfo=UTC) if match[3] else moment
