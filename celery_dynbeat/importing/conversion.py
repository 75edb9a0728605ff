"""Convert the kinds of schedules that Celery's schedulers share. Pure functions."""

import json
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from celery.schedules import ParseException, crontab

from celery_dynbeat.celery_schedules import trigger_of
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.importing.foreign import Inexpressible, Note
from celery_dynbeat.triggers import Cron, Every, Solar, Trigger
from celery_dynbeat.triggers.cron.expression import parse_expression
from celery_dynbeat.triggers.zones import load_zone, offset_at

DRIFT = Note(
    "drift",
    "an interval counts from the last run before the import, in equal steps; the old scheduler "
    "counted each interval from the previous send, and therefore drifted",
)
SOLAR = Note("solar", "the same events to the second; near the poles at most one per solar day")
EXPIRY = Note(
    "expire_seconds",
    "a message expires this long after its run was recorded, even if a beat sends it again; the "
    "old scheduler counted from each send",
)
EXPIRES = Note(
    "expires",
    "no fire time from this instant on; before, messages were sent and then discarded",
)
ONE_OFF = Note(
    "one-off", "after its run, the schedule is finished instead of disabled, and can be pruned"
)
_MONTHS = 12


class CrontabFields(NamedTuple):
    """The fields of Celery's ``crontab``, in the order of a crontab line."""

    minute: str
    hour: str
    day_of_month: str
    month_of_year: str
    day_of_week: str

    def __str__(self) -> str:
        return " ".join("".join(str(field).split()) for field in self)


class TriggerWithNotes(NamedTuple):
    """A trigger, and what differs from the schedule of the source."""

    trigger: Trigger
    notes: tuple[Note, ...] = ()


@lru_cache(maxsize=8192)
def cron(fields: CrontabFields, timezone: str) -> TriggerWithNotes:
    """Return the trigger for the fields of a ``crontab``, in which both day fields must match.

    Raises Inexpressible.
    """
    try:
        given = crontab(**fields._asdict())
        trigger = trigger_of(given, timezone=timezone)
    except (InvalidTriggerError, ParseException, ValueError, TypeError) as error:
        raise Inexpressible(f"crontab {shorten(str(fields))}: {error}") from error
    notes = []
    if trigger.spec.endswith("day_and"):
        notes.append(
            Note("days", "both day fields must match, as before; in a crontab file one is enough")
        )
    if isinstance(trigger, Cron) and _changes_clocks(timezone):
        notes.append(_clock_note(trigger))
    return TriggerWithNotes(trigger, tuple(notes))


def _clock_note(trigger: Cron) -> Note:
    """Return the note for a wall clock that changes."""
    if parse_expression(trigger.expression).wildcard:
        rule = "it also runs in the second pass of an hour that the clock repeats"
        differs = "Celery leaves that pass out"
    else:
        rule = "a time that the clock skips runs at the first instant after the gap"
        differs = "Celery runs it later, by the length of the gap"
    return Note("clock changes", f"{rule} ({trigger.timezone}); {differs}")


@lru_cache(maxsize=1024)
def _changes_clocks(timezone: str) -> bool:
    """Return whether the clock of a zone changed in 2025, as it does with summer time."""
    zone = load_zone(timezone)
    months = (datetime(2025, month, 1, tzinfo=UTC) for month in range(1, _MONTHS + 1))
    return len({offset_at(zone, instant) for instant in months}) > 1


def interval(every: Any, period: Any) -> TriggerWithNotes:
    """Return the trigger for a number of days, hours, minutes, seconds or microseconds.

    Raises Inexpressible.
    """
    try:
        return TriggerWithNotes(Every(timedelta(**{str(period): every})), (DRIFT,))
    except (InvalidTriggerError, OverflowError, TypeError, ValueError) as error:
        raise Inexpressible(f"interval {every} {period}: {error}") from error


def solar(event: Any, latitude: Any, longitude: Any) -> TriggerWithNotes:
    """Return the trigger for an event of the sun. Raises Inexpressible."""
    try:
        trigger = Solar(event, latitude=float(latitude), longitude=float(longitude))
    except (InvalidTriggerError, TypeError, ValueError) as error:
        raise Inexpressible(f"solar {event}: {error}") from error
    return TriggerWithNotes(trigger, (SOLAR,))


def json_field(field: str, text: str | None, default: Any) -> Any:
    """Return the value of a column of JSON. Raises Inexpressible."""
    if not text:
        return default
    try:
        # kombu's loads is not used, so that a datetime stays the object that the worker's decoder
        # reads.
        return json.loads(text)
    except (RecursionError, ValueError) as error:
        raise Inexpressible(
            f"{field} is not JSON ({error}); the old scheduler disables it"
        ) from error


def in_zone(instant: datetime | None, zone: ZoneInfo) -> datetime | None:
    """Return an aware instant in UTC; a naive one is in ``zone``."""
    if instant is None:
        return None
    aware = instant.replace(tzinfo=zone) if instant.tzinfo is None else instant
    return aware.astimezone(UTC)
