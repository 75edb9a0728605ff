"""RedBeat's JSON of a schedule becomes a trigger. Pure functions.

``redbeat/decoder.py`` defines the formats. A recurrence rule is stored with a fixed offset in place
of its zone.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.importing import conversion
from celery_dynbeat.importing.conversion import CrontabFields, TriggerWithNotes
from celery_dynbeat.importing.found import Inexpressible, Note
from celery_dynbeat.triggers import Every, RRule

_FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_PARTS = (
    *("bysetpos", "bymonth", "bymonthday", "byyearday", "byeaster", "byweekno", "byhour"),
    *("byminute", "bysecond"),
)
#: The parts in the order in which they are shown.
_SHOWN = ("freq", "interval", "count", "until", "wkst", "byweekday", *_PARTS, "dtstart")
_MAX_SHOWN = 80
_FIXED_OFFSET = Note(
    "rrule",
    "RedBeat has stored the offset of dtstart in place of its zone: the rule ignores clock changes,"
    " as before",
)
_MINUTES_PER_HOUR = 60
_MAX_OFFSET_HOURS = 12


def trigger_of(schedule: Any, *, app_timezone: str) -> TriggerWithNotes:
    """Return the trigger for the value of ``schedule`` in a definition. Raises Inexpressible."""
    kind = schedule.get("__type__") if isinstance(schedule, dict) else None
    try:
        match kind:
            case "interval":
                return _interval(schedule)
            case "crontab":
                return conversion.cron(crontab_fields(schedule), app_timezone)
            case "rrule":
                return _rrule(schedule)
            case _:
                raise Inexpressible(f"a schedule of the type {shorten(kind)} is not known")
    except (InvalidTriggerError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise Inexpressible(f"{described(schedule)}: {error}") from error


def described(schedule: Any) -> str:
    """Return the schedule in the words of RedBeat."""
    if not isinstance(schedule, dict):
        return shorten(schedule)
    match schedule.get("__type__"):
        case "interval":
            relative = ", relative" if schedule.get("relative") else ""
            return f"every {schedule.get('every')} seconds{relative}"
        case "crontab":
            return f"crontab {crontab_fields(schedule)}"
        case "rrule":
            given = (name for name in _SHOWN if schedule.get(name) not in (None, []))
            return f"rrule {' '.join(f'{name}={_shown(name, schedule)}' for name in given)}"
        case _:
            return shorten({key: value for key, value in schedule.items() if value is not None})


def crontab_fields(schedule: Mapping[str, Any]) -> CrontabFields:
    """Return the fields, of which each is text, a number or a list."""
    return CrontabFields(*(_field(schedule.get(name, "*")) for name in CrontabFields._fields))


def instant_of(value: Any) -> datetime | None:
    """Return the instant in RedBeat's JSON of a datetime. None stays None. Raises Inexpressible."""
    if value is None:
        return None
    try:
        parts = {key: each for key, each in value.items() if key not in {"__type__", "timezone"}}
        zone = value.get("timezone", "UTC")
        # RedBeat writes the name of a zone, or an offset in seconds.
        known = ZoneInfo(zone) if isinstance(zone, str) else timezone(timedelta(seconds=zone))
        return datetime(**parts, tzinfo=known).astimezone(UTC)
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        raise Inexpressible(f"{shorten(value)} is not an instant: {error}") from error


def _field(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _interval(schedule: Mapping[str, Any]) -> TriggerWithNotes:
    if schedule.get("relative"):
        raise Inexpressible(
            "an interval that is rounded to its unit (relative): create a crontab or an anchored"
            " interval in its place"
        )
    return _every(schedule["every"])


@lru_cache(maxsize=1024)
def _every(seconds: float) -> TriggerWithNotes:
    return TriggerWithNotes(Every(timedelta(seconds=seconds)), (conversion.DRIFT,))


def _rrule(schedule: Mapping[str, Any]) -> TriggerWithNotes:
    offset = int(schedule.get("dtstart_tz") or 0)
    zone = _zone(offset)
    start = datetime.fromtimestamp(schedule["dtstart"], tz=timezone(timedelta(minutes=offset)))
    text = f"DTSTART;TZID={zone}:{start:%Y%m%dT%H%M%S}\nRRULE:{';'.join(_parts(schedule))}"
    notes = () if zone == "UTC" else (_FIXED_OFFSET,)
    return TriggerWithNotes(RRule(text), notes)


def _zone(offset: int) -> str:
    """Return the zone of the tz database with a fixed offset in minutes."""
    hours, minutes = divmod(offset, _MINUTES_PER_HOUR)
    if minutes or abs(hours) > _MAX_OFFSET_HOURS:
        rule = "only whole hours have a zone in the tz database; create an RRULE with its zone"
        raise Inexpressible(f"a rule with an offset of {offset} minutes: {rule}")
    # The signs of these names are reversed (POSIX).
    return f"Etc/GMT{-hours:+d}" if hours else "UTC"


def _parts(schedule: Mapping[str, Any]) -> Iterable[str]:
    yield f"FREQ={_FREQUENCIES[schedule['freq']]}"
    if schedule.get("interval", 1) != 1:
        yield f"INTERVAL={schedule['interval']}"
    if schedule.get("count") is not None:
        yield f"COUNT={schedule['count']}"
    if schedule.get("until") is not None:
        yield f"UNTIL={datetime.fromtimestamp(schedule['until'], tz=UTC):%Y%m%dT%H%M%SZ}"
    if schedule.get("wkst") is not None:
        yield f"WKST={_weekday(schedule['wkst'])}"
    if schedule.get("byweekday") is not None:
        yield f"BYDAY={','.join(map(_weekday, _listed(schedule['byweekday'])))}"
    for part in _PARTS:
        values = _listed(schedule.get(part))
        if values:
            yield f"{part.upper()}={','.join(map(str, values))}"


def _shown(name: str, schedule: Mapping[str, Any]) -> str:
    """Return the value of a part in words, or as it is stored if it is invalid."""
    value = schedule[name]
    try:
        match name:
            case "freq":
                return _FREQUENCIES[value]
            case "wkst" | "byweekday":
                return ",".join(map(_weekday, _listed(value)))
            case "dtstart" | "until":
                zone = timezone(timedelta(minutes=schedule.get(f"{name}_tz") or 0))
                return datetime.fromtimestamp(value, tz=zone).isoformat()
            case _:
                text = ",".join(map(str, _listed(value)))
                return text if len(text) <= _MAX_SHOWN else shorten(value)
    except (ArithmeticError, LookupError, OSError, TypeError, ValueError):
        return shorten(value)


def _weekday(value: Any) -> str:
    # RedBeat does not store the number of the weekday in the month, so it reads MO(+1) back as MO.
    return _WEEKDAYS[value["wkday"] if isinstance(value, Mapping) else value]


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
