"""The days of an iCalendar file (RFC 5545), for a shared calendar.

Each event becomes the dates on which it takes place, up to 10 years ahead. An event repeats on the
clock of the zone that DTSTART names (TZID). If the caller names a zone, the occurrences at a time
of day then have the dates of the caller's zone. Whole days, and times without a zone, are the same
everywhere.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
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
#: The maximum number of days of one event, and of all occurrences of one file.
MAX_EVENT_DAYS, MAX_OCCURRENCES = 366, 20_000
#: How far ahead events that repeat are expanded.
HORIZON = timedelta(days=3653)
#: Events before this span are left out, because no schedule needs them.
_PAST = timedelta(days=366)
#: The number of steps to find the days of one file, which take a few seconds.
STEPS = 2_000_000
#: The steps to convert a time of the file into an instant. A VTIMEZONE takes a step more for some
#: changes of its clock, because dateutil reads all of them for each time.
_MOMENT_STEPS, _CHANGES_PER_STEP = 10, 20
#: How many of these steps the conversion of a time from another zone takes.
_CONVERSIONS = 5
#: The changes of clocks that all VTIMEZONE components may describe. Some programs begin in 1601.
MAX_ZONE_CHANGES = 20_000
#: No time of a file may be later, because the changes of clocks are counted up to here.
_LAST_YEAR = 2100
# The steps of a rule that repeats within a day would not suffice.
_RULES = frozenset({"DAILY", "WEEKLY", "MONTHLY", "YEARLY"})
_WITHIN_DAY = ("BYHOUR", "BYMINUTE", "BYSECOND")
# A rule of a VTIMEZONE must name a day that exists in each year, or dateutil searches for long.
_ZONE_RULE = {
    "FREQ": re.compile("YEARLY"),
    "INTERVAL": re.compile("1"),
    "BYMONTH": re.compile("0?[1-9]|1[0-2]"),
    "BYDAY": re.compile("[-+]?[1-5]?(MO|TU|WE|TH|FR|SA|SU)"),
    "BYMONTHDAY": re.compile(r"(-1|0?[1-9]|1\d|2[0-8])(,-?\d\d?){0,6}"),
    "WKST": re.compile("[A-Z]{2}"),
    "UNTIL": re.compile("[0-9TZ]+"),
    "COUNT": re.compile("[0-9]+"),
}
_DAY, _MICROSECOND = timedelta(days=1), timedelta(microseconds=1)
#: The parser drops a malformed property. If one of these properties is missing, an event has
#: different days.
_NEEDED = frozenset(
    {"DTSTART", "DTEND", "DURATION", "RRULE", "RDATE", "EXDATE", "RECURRENCE-ID", "SEQUENCE"}
)
# The parser returns a list if one of these occurs twice.
_SINGLE = ("DTSTART", "DTEND", "DURATION", "RECURRENCE-ID", "SEQUENCE", "STATUS", "UID")
_WITH_ZONE = ("DTSTART", "DTEND", "RDATE", "EXDATE", "RECURRENCE-ID")


def dates_of(ics: object, *, timezone: str | None, now: datetime) -> Iterator[date]:
    """Yield the dates of the events in ``ics``, text or bytes, from a year ago on.

    A date can occur more than once. Raises InvalidScheduleError with field ``"ics"``.
    """
    zone = None if timezone is None else load_zone(timezone)
    try:
        checked = _checked_text(ics)
        budget = _Budget(
            STEPS, moment_steps=_MOMENT_STEPS + _zone_changes(checked) // _CHANGES_PER_STEP
        )
        yield from _dates(_events(checked), zone, budget=budget, now=now)
    except InvalidScheduleError:
        raise
    except BudgetExceededError:
        raise _refused("is too costly to read: leave some of the events out") from None
    # The parser reads a property late, and raises errors of many types if it is malformed.
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise _refused(f"has an event that cannot be read: {reason}") from error


def _dates(
    events: list[Any], zone: tzinfo | None, *, budget: "_Budget", now: datetime
) -> Iterator[date]:
    first, last = (now - _PAST).date(), (now + HORIZON).date()
    left = MAX_OCCURRENCES
    for event, left_out in _series(events, budget):
        occurrences = event.occurrences(left_out, since=first, until=last)
        for start, length in occurrences:
            left -= 1
            if left < 0:
                rule = f"has more than {MAX_OCCURRENCES:,} occurrences: use a trigger for them"
                raise _refused(rule)
            for day in event.days(start, length, zone):
                budget.spend(1)
                if first <= day <= last:
                    yield day


@dataclass(slots=True)
class _Budget(SearchBudget):
    """The steps that are left for the whole file."""

    moment_steps: int = _MOMENT_STEPS


def _checked_text(ics: object) -> str | bytes:
    if not isinstance(ics, str | bytes):
        raise invalid("ics", ics, "must be the text of an iCalendar file")
    if len(ics) > MAX_BYTES:
        raise _refused(f"must have at most {MAX_BYTES:,} bytes, not {len(ics):,}")
    return ics


def _zone_changes(ics: str | bytes) -> int:
    """Return how often the clocks of the VTIMEZONE components change up to _LAST_YEAR.

    The parser may compute all changes of a zone as soon as it reads the zone. Therefore they are
    counted first, with the parser's rules for lines and components.
    """
    changes, since, per_year = 0, _LAST_YEAR, 0
    for name, value in _zone_lines(ics):
        if name in {"BEGIN", "END"}:
            changes += 1 + per_year * (_LAST_YEAR + 1 - since)
            since, per_year = _LAST_YEAR, 0
        elif name == "DTSTART":
            since = min(since, int(value[:4]))
        elif name in {"RRULE", "EXRULE"}:
            per_year += _changes_per_year(value)
        elif name in {"RDATE", "EXDATE"}:
            changes += value.count(",") + 1
        if changes > MAX_ZONE_CHANGES:
            rule = f"has time zones (VTIMEZONE) with more than {MAX_ZONE_CHANGES:,} changes"
            raise _refused(f"{rule}: leave out the zones that no event uses")
    return changes


def _zone_lines(ics: str | bytes) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each line in a VTIMEZONE."""
    names = list[str]()
    # The class has no types.
    lines: Any = icalendar.parser.Contentlines
    for line in lines.from_ical(ics):
        is_edge = line[:5].upper().startswith(("BEGIN", "END"))
        if not is_edge and "VTIMEZONE" not in names:
            continue
        try:
            name, _, value = line.parts()
        except ValueError:
            # The parser ignores the line.
            continue
        if name.upper() == "BEGIN":
            names.append(value.upper())
        if "VTIMEZONE" in names:
            yield name.upper(), value
        if name.upper() == "END" and names:
            names.pop()


def _changes_per_year(rule: str) -> int:
    parts = [part.partition("=")[::2] for part in rule.upper().strip(";").split(";")]
    values = dict(parts)
    is_known = all(name in _ZONE_RULE and _ZONE_RULE[name].fullmatch(text) for name, text in parts)
    is_yearly = "FREQ" in values and (
        "BYMONTH" in values or not {"BYDAY", "BYMONTHDAY"} & {*values}
    )
    if len(values) != len(parts) or not is_known or not is_yearly:
        what = f"has a VTIMEZONE with the rule {rule[:80]!r}: the clock of a zone must change"
        raise _refused(f"{what} on a day of one month, each year")
    if "BYMONTHDAY" in values:
        return values["BYMONTHDAY"].count(",") + 1
    # BYDAY without a number is each such day of the month.
    return 5 if values.get("BYDAY", "1").isalpha() else 1


def _events(ics: str | bytes) -> list[Any]:
    try:
        calendars = icalendar.Calendar.from_ical(ics, multiple=True)
        events = [event for each in calendars for event in each.walk("VEVENT")]
    # The parser raises errors of many types.
    except Exception as error:
        raise _refused(
            f"is not an iCalendar file: {type(error).__name__}: {str(error)[:200]}"
        ) from error
    if not events:
        raise _refused("has no event: it must be an iCalendar file with VEVENT components")
    if len(events) > MAX_EVENTS:
        raise _refused(f"must have at most {MAX_EVENTS:,} events, not {len(events):,}")
    for event in events:
        _check(event)
    return events


def _check(event: Any) -> None:
    _check_lines(event)
    if getattr(event.get("dtstart"), "dt", None) is None:
        raise _refused_event(event, "has no DTSTART")
    if "exrule" in event:
        raise _refused_event(event, "has EXRULE, which RFC 5545 dropped: list the dates as EXDATE")
    if "recurrence-id" in event and "uid" not in event:
        rule = "has RECURRENCE-ID without UID: give it the UID of the event that it changes"
        raise _refused_event(event, rule)
    if "recurrence-id" in event and "RANGE" in event["recurrence-id"].params:
        rule = (
            "changes all later occurrences (RANGE): end the rule of the first event with UNTIL,"
            " and write a second event with the changed rule and another UID"
        )
        raise _refused_event(event, rule)
    for name in _WITH_ZONE:
        for value in _listed(event.get(name)):
            _check_times(event, value)


def _check_lines(event: Any) -> None:
    for name, reason in event.errors:
        # A line without a name can be any property.
        if name is None or name in _NEEDED:
            what = name or "a line"
            raise _refused_event(event, f"has {what} that cannot be read: {str(reason)[:200]}")
    for name in _SINGLE:
        if isinstance(event.get(name), list):
            raise _refused_event(event, f"has {name} more than once: write it once")


def _check_times(event: Any, value: Any) -> None:
    """Raise InvalidScheduleError for a late time, or if the parser does not know its zone."""
    zone = value.params.get("TZID")
    for at in (at for each in getattr(value, "dts", (value,)) for at in _listed(each.dt)):
        if not isinstance(at, datetime):
            continue
        if at.year > _LAST_YEAR:
            raise _refused_event(event, f"has a time after the year {_LAST_YEAR}: leave it out")
        if zone is not None and at.tzinfo is None:
            rule = (
                f"has a time in the unknown zone {str(zone)[:80]!r}: use a name of the tz database,"
                " or add the VTIMEZONE of the zone"
            )
            raise _refused_event(event, rule)


def _series(events: list[Any], budget: _Budget) -> Iterator[tuple["_Event", Collection[datetime]]]:
    """Yield each event, and the moments of its occurrences that are removed or replaced.

    An event with RECURRENCE-ID replaces one occurrence of the event with its UID. Of two versions
    of an event, the one with the higher SEQUENCE counts. A cancelled event cancels all replacements
    with a lower SEQUENCE.
    """
    series = defaultdict[Any, list[_Event]](list)
    for number, source in enumerate(events):
        # Events without a UID are separate events.
        uid = str(source["uid"]) if "uid" in source else number
        series[uid].append(_Event.of(source, budget))
    for found in series.values():
        wholes = _newest([event for event in found if event.replaces is None])
        # The clock of the series compares the times: each can be written in any zone.
        clock = next(iter(wholes), found[0])
        cancelled = max((event.sequence for event in wholes if event.is_cancelled), default=0)
        replacements = defaultdict[datetime, list[_Event]](list)
        replaced = dict[datetime, date]()
        for event in found:
            if event.replaces is not None and event.sequence >= cancelled:
                moment = clock.moment(event.replaces)
                replacements[moment].append(event)
                replaced[moment] = event.replaces
        for event in wholes:
            removed = set(map(event.moment, _values(event.source, "exdate")))
            moments = {key: event.moment(at) for key, at in replaced.items()}
            replaced = {key: at for key, at in replaced.items() if moments[key] not in removed}
            yield event, removed.union(moments.values())
        yield from ((event, ()) for key in replaced for event in _newest(replacements[key]))


def _newest(versions: list["_Event"]) -> list["_Event"]:
    newest = max((event.sequence for event in versions), default=0)
    return [event for event in versions if event.sequence == newest]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """An event on the clock of its zone. Wall times are naive."""

    source: Any
    start: datetime
    length: timedelta
    #: The zone of a time of day. None means whole days, or times without a zone.
    home: tzinfo | None
    is_whole_day: bool
    budget: _Budget

    @classmethod
    def of(cls, source: Any, budget: _Budget) -> "_Event":
        start = source["dtstart"].dt
        is_whole_day = not isinstance(start, datetime)
        end = getattr(source.get("dtend"), "dt", None)
        if end is None:
            lasting = getattr(source.get("duration"), "dt", None)
            end = start + (lasting or (_DAY if is_whole_day else timedelta()))
        home = None if is_whole_day else start.tzinfo
        if isinstance(end, datetime) and end.tzinfo is not home:
            budget.spend(_CONVERSIONS * budget.moment_steps)
        begin = _wall(start, home)
        length = _wall(end, home) - begin
        return cls(
            source=source,
            start=begin,
            length=length,
            home=home,
            is_whole_day=is_whole_day,
            budget=budget,
        )

    @property
    def replaces(self) -> date | None:
        """Return which occurrence of another event this event replaces."""
        replaced: date | None = getattr(self.source.get("recurrence-id"), "dt", None)
        return replaced

    @property
    def sequence(self) -> int:
        """Return the number of the version."""
        return int(self.source.get("sequence", 0))

    @property
    def is_cancelled(self) -> bool:
        """Return whether the event does not take place."""
        return str(self.source.get("status", "")).upper() == "CANCELLED"

    def wall(self, at: date) -> datetime:
        """Return a time of the file as a wall time. A date means the occurrence on this date."""
        if not isinstance(at, datetime):
            return datetime.combine(at, self.start.time())
        if at.tzinfo is not None and at.tzinfo is not self.home:
            self.budget.spend(_CONVERSIONS * self.budget.moment_steps)
        return datetime.combine(at.date(), time()) if self.is_whole_day else _wall(at, self.home)

    def moment(self, at: date) -> datetime:
        """Return the value that identifies an occurrence: an instant or a naive wall time."""
        self.budget.spend(self.budget.moment_steps)
        wall = self.wall(at)
        if self.home is None:
            return wall
        # icalendar 5 uses the zones of pytz.
        localize = getattr(self.home, "localize", None)
        return (localize(wall) if localize else wall.replace(tzinfo=self.home)).astimezone(UTC)

    def occurrences(
        self, left_out: Collection[datetime], *, since: date, until: date
    ) -> Iterator[tuple[datetime, timedelta]]:
        """Yield the wall time and the length of each occurrence from ``since`` to ``until``.

        Others can be among them.
        """
        if self.is_cancelled:
            return
        seen = {*left_out}
        for start, length in self._all(since=since, until=until):
            moment = self.moment(start)
            if moment not in seen:
                seen.add(moment)
                yield start, length

    def _all(self, *, since: date, until: date) -> Iterator[tuple[datetime, timedelta]]:
        if self.replaces is not None:
            # Some programs copy the rule of the other event.
            yield self.start, self.length
            return
        for at in _values(self.source, "rdate"):
            begin, end = at if isinstance(at, tuple) else (at, self.length)
            start = self.wall(begin)
            yield start, end if isinstance(end, timedelta) else self.wall(end) - start
        rules = [rule for rule in _listed(self.source.get("rrule")) if rule]
        limits = [self._limit(rule) for rule in rules]
        # Some programs delete an event with an UNTIL before its start.
        if not limits or self.moment(self.start) <= max(limits):
            yield self.start, self.length
        for rule, limit in zip(rules, limits, strict=True):
            text = f"DTSTART:{self.start:%Y%m%dT%H%M%S}Z\nRRULE:{self._without_limit(rule)}"
            for start in self._walls(text, since=since, until=until):
                if self.moment(start) > limit:
                    break
                yield start, self.length

    def _limit(self, rule: Any) -> datetime:
        """Return the last moment of a rule. An UNTIL that is a date contains its whole day."""
        last = [
            at if isinstance(at, datetime) else datetime.combine(at, time.max)
            for at in _listed(rule.get("UNTIL"))
            # A later time may have no instant.
            if at.year < _LAST_YEAR
        ]
        never = datetime.max.replace(tzinfo=None if self.home is None else UTC)
        return min(map(self.moment, last), default=never)

    def _without_limit(self, rule: Any) -> str:
        frequency = str(next(iter(_listed(rule.get("FREQ"))), "")).upper()
        if frequency not in _RULES or any(part in rule for part in _WITHIN_DAY):
            what = "has a rule that repeats within a day; events must repeat by days at most"
            raise _refused_event(self.source, what)
        parts = {key: value for key, value in rule.items() if key.upper() != "UNTIL"}
        # Some programs write COUNT=-1 for a rule without COUNT.
        if any(int(count) < 0 for count in _listed(rule.get("COUNT"))):
            parts.pop("COUNT")
        return str(type(rule)(parts).to_ical().decode())

    def _walls(self, text: str, *, since: date, until: date) -> Iterator[datetime]:
        # Two days are added, because another zone can be a day ahead or behind. An earlier event
        # has ended.
        start = datetime.combine(since, time(), UTC) - (MAX_EVENT_DAYS + 2) * _DAY
        end = datetime.combine(until, time.max, UTC) + 2 * _DAY
        try:
            # dateutil is not used, because it takes a second for a rule that no day matches. The
            # wall times are searched as times in UTC, which skips none.
            cursor = RRule(text).cursor(self.budget)
            at = cursor.next_after(start)
            while at is not None and at <= end:
                yield at.replace(tzinfo=None)
                at = cursor.next_after(at)
        except InvalidTriggerError as error:
            what = f"has a rule that cannot be read: {str(error)[:200]}"
            raise _refused_event(self.source, what) from error

    def days(self, start: datetime, length: timedelta, zone: tzinfo | None) -> Iterator[date]:
        """Yield the dates of an occurrence in ``zone``. None means the zone of the event."""
        if length > (MAX_EVENT_DAYS + 1) * _DAY:
            raise _refused_event(self.source, f"lasts {length.days} days, at most {MAX_EVENT_DAYS}")
        # The end is not part of an event. It is at midnight, or at the start of the next whole day.
        ends = [start, max(start + length - _MICROSECOND, start)]
        if zone is not None and self.home is not None:
            ends = [self.moment(at).astimezone(zone) for at in ends]
        first, last = (at.date() for at in ends)
        days = (last - first).days + 1
        if days > MAX_EVENT_DAYS:
            raise _refused_event(self.source, f"lasts {days} days, at most {MAX_EVENT_DAYS}")
        yield from (first + number * _DAY for number in range(days))


def _values(source: Any, name: str) -> Iterator[Any]:
    for each in _listed(source.get(name)):
        yield from (at.dt for at in each.dts)


def _wall(at: date, home: tzinfo | None) -> datetime:
    if not isinstance(at, datetime):
        return datetime.combine(at, time())
    return (at if at.tzinfo is None or home is None else at.astimezone(home)).replace(tzinfo=None)


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _refused(rule: str) -> Exception:
    return invalid("ics", "the file", rule)


def _refused_event(source: Any, rule: str) -> Exception:
    name = str(source.get("uid") or source.get("summary", ""))[:80]
    return _refused(f"event {name!r} {rule}")
