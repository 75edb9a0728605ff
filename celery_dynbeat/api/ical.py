"""The days of an iCalendar file (RFC 5545), for a shared calendar.

Each event becomes the dates on which it takes place, up to 10 years ahead. An event of a whole day
has dates without a zone. An event at a time of day has the dates of the given zone, by default of
its own.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from celery_dynbeat.api.checks import invalid
from celery_dynbeat.common.errors import (
    ConfigurationError,
    InvalidScheduleError,
    InvalidTriggerError,
)
from celery_dynbeat.triggers import RRule
from celery_dynbeat.triggers.base import BudgetExceededError, SearchBudget
from celery_dynbeat.triggers.zones import load_zone

try:
    import icalendar
except ImportError as error:
    raise ConfigurationError(
        f'calendars.put(ics=...) needs icalendar ({error}): pip install "celery-dynbeat[ics]"'
    ) from error

MAX_BYTES, MAX_EVENTS = 1_000_000, 2_000
#: Days that one event lasts at most, and all occurrences of one file.
MAX_EVENT_DAYS, MAX_OCCURRENCES = 366, 20_000
#: How far ahead events that repeat are expanded.
HORIZON = timedelta(days=3653)
#: Events before this span are left out: no schedule needs them.
_PAST = timedelta(days=366)
#: The steps of the searches for the occurrences of one file: a few seconds.
STEPS = 2_000_000
# The steps of a rule that repeats within a day would not suffice.
_RULES = frozenset({"DAILY", "WEEKLY", "MONTHLY", "YEARLY"})
_DAY = timedelta(days=1)


def dates_of(ics: object, *, timezone: str | None, now: datetime) -> Iterator[date]:
    """Yield the dates of the events in ``ics``, text or bytes, from a year ago on.

    A date can occur more than once. Raises InvalidScheduleError with field ``"ics"``.
    """
    zone = None if timezone is None else load_zone(timezone)
    try:
        yield from _dates(_events(ics), zone, now=now)
    except InvalidScheduleError:
        raise
    # The parser reads a property late, and raises errors of many types for a malformed one.
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise _refused(f"has an event that cannot be read: {reason}") from error


def _dates(events: list[Any], zone: Any, *, now: datetime) -> Iterator[date]:
    first, last = (now - _PAST).date(), (now + HORIZON).date()
    replaced = {
        (str(event.get("uid")), _local(event["recurrence-id"].dt, zone).date())
        for event in events
        if "recurrence-id" in event
    }
    left, budget = MAX_OCCURRENCES, SearchBudget(STEPS)
    for event in events:
        if str(event.get("status", "")).upper() == "CANCELLED":
            continue
        key = None if "recurrence-id" in event else str(event.get("uid"))
        length = _length(event, zone)
        for start in _starts(event, zone, since=first, until=last, budget=budget):
            left -= 1
            if left < 0:
                rule = f"has more than {MAX_OCCURRENCES:,} occurrences: use a trigger for them"
                raise _refused(rule)
            if (key, start.date()) in replaced:
                continue
            days = (start.date() + number * _DAY for number in range(length))
            yield from (day for day in days if first <= day <= last)


def _events(ics: object) -> list[Any]:
    if not isinstance(ics, str | bytes):
        raise invalid("ics", ics, "must be the text of an iCalendar file")
    if len(ics) > MAX_BYTES:
        raise _refused(f"must have at most {MAX_BYTES:,} bytes, not {len(ics):,}")
    try:
        calendars = icalendar.Calendar.from_ical(ics, multiple=True)
        events = [event for each in calendars for event in each.walk("VEVENT")]
    # The parser raises errors of many types.
    except Exception as error:
        raise _refused(
            f"is no iCalendar file: {type(error).__name__}: {str(error)[:200]}"
        ) from error
    if not events:
        raise _refused("has no event: it must be an iCalendar file with VEVENT components")
    if len(events) > MAX_EVENTS:
        raise _refused(f"must have at most {MAX_EVENTS:,} events, not {len(events):,}")
    for event in events:
        if getattr(event.get("dtstart"), "dt", None) is None:
            raise _refused(f"event {str(event.get('uid'))[:80]!r} has no DTSTART")
    return events


def _starts(
    event: Any, zone: Any, *, since: date, until: date, budget: SearchBudget
) -> Iterator[datetime]:
    """Yield the wall times at which the event begins, of occurrences from ``since`` to ``until``.

    Earlier ones can be among them.
    """
    start = _local(event["dtstart"].dt, zone)
    left_out = {*_instants(event, "exdate", zone)}
    own = {start, *_instants(event, "rdate", zone)} - left_out
    yield from (at for at in own if at.date() <= until)
    for rule in _listed(event.get("rrule")):
        for at in _occurrences(_text(rule, start, zone), since=since, until=until, budget=budget):
            if at not in own and at not in left_out:
                yield at


def _instants(event: Any, name: str, zone: Any) -> Iterator[datetime]:
    for each in _listed(event.get(name)):
        for at in each.dts:
            # A period begins at its first instant.
            yield _local(at.dt[0] if isinstance(at.dt, tuple) else at.dt, zone)


def _text(rule: Any, start: datetime, zone: Any) -> str:
    """Return the rule as text, with its wall times as if they were in UTC."""
    parts = {str(key).upper(): value for key, value in rule.items()}
    frequency = str(next(iter(_listed(parts.get("FREQ"))), "")).upper()
    if frequency not in _RULES or not {"BYHOUR", "BYMINUTE", "BYSECOND"}.isdisjoint(parts):
        raise _refused("has a rule that repeats within a day; events must repeat by days at most")
    limits = [_local(at, zone) for at in _listed(parts.get("UNTIL"))]
    plain = type(rule)({key: value for key, value in rule.items() if str(key).upper() != "UNTIL"})
    written = plain.to_ical().decode()
    if limits:
        # A date as the limit contains all of its day.
        last = min(limits)
        last = last if last.time() > time() else datetime.combine(last.date(), time.max)
        written = f"{written};UNTIL={last:%Y%m%dT%H%M%SZ}"
    return f"DTSTART:{start:%Y%m%dT%H%M%SZ}\nRRULE:{written}"


def _occurrences(
    text: str, *, since: date, until: date, budget: SearchBudget
) -> Iterator[datetime]:
    # An event that began earlier has ended.
    start = datetime.combine(since, time(), UTC) - (MAX_EVENT_DAYS + 1) * _DAY
    end = datetime.combine(until, time.max, UTC)
    try:
        # Not dateutil: it takes a second for a rule that no day matches.
        cursor = RRule(text).cursor(budget)
        at = cursor.next_after(start)
        while at is not None and at <= end:
            yield at.replace(tzinfo=None)
            at = cursor.next_after(at)
    except InvalidTriggerError as error:
        raise _refused(f"has a rule that cannot be read: {str(error)[:200]}") from error
    except BudgetExceededError:
        raise _refused("has rules that are too costly: leave some of the events out") from None


def _length(event: Any, zone: Any) -> int:
    """Return the number of days on which one occurrence takes place."""
    start = event["dtstart"].dt
    end = getattr(event.get("dtend"), "dt", None)
    if end is None:
        lasting = getattr(event.get("duration"), "dt", None)
        end = start + (lasting or (timedelta() if isinstance(start, datetime) else _DAY))
    # The end is not a part of the event: at midnight, or at the start of the next whole day.
    local = _local(start, zone)
    last = max(_local(end, zone) - timedelta(microseconds=1), local)
    days = (last.date() - local.date()).days + 1
    if days > MAX_EVENT_DAYS:
        uid = str(event.get("uid"))[:80]
        raise _refused(f"event {uid!r} lasts {days} days, at most {MAX_EVENT_DAYS}")
    return days


def _local(at: date, zone: Any) -> datetime:
    """Return the wall time of a date or an instant in the zone, without a zone."""
    if not isinstance(at, datetime):
        return datetime.combine(at, time())
    if at.tzinfo is None or zone is None:
        return at.replace(tzinfo=None)
    return at.astimezone(UTC).astimezone(zone).replace(tzinfo=None)


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _refused(rule: str) -> Exception:
    return invalid("ics", "the file", rule)
