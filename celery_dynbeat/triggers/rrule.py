"""RRule: fire times by a recurrence rule of RFC 5545, the language of calendars."""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache, partial
from typing import ClassVar
from zoneinfo import ZoneInfo

from celery_dynbeat.triggers.base import Trigger, require_text, utc
from celery_dynbeat.triggers.rrule_days import day_filter, days_of
from celery_dynbeat.triggers.rrule_parts import Rule, format_moment, format_rule, refused
from celery_dynbeat.triggers.rrule_text import (
    FIRST_YEAR,
    LAST_YEAR,
    MAX_LENGTH,
    Recurrence,
    anchored,
    instant_of,
    parse_recurrence,
)
from celery_dynbeat.triggers.rrule_walls import Walls
from celery_dynbeat.triggers.rrule_words import describe_recurrence
from celery_dynbeat.triggers.zones import first_instant, fold_at, lookup, wall_at

_EARLIEST = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC)
_NO_EARLIER = datetime(FIRST_YEAR, 1, 1)  # noqa: DTZ001 - a time of the wall clock
_SECOND = timedelta(seconds=1)
# No clock was ever changed by more than a day, the one that Samoa left out.
_LONGEST_GAP = timedelta(hours=25)
_Source = Callable[[datetime], datetime | None]
_EXAMPLE = "DTSTART;TZID=Europe/Berlin:20260105T090000\nRRULE:FREQ=WEEKLY;BYDAY=MO"


@dataclass(frozen=True, slots=True, init=False)
class RRule(Trigger):
    """Fire by recurrence text of RFC 5545: ``DTSTART``, ``RRULE``, ``RDATE``, ``EXDATE``.

    Several rules and dates add up; ``EXDATE`` takes away. A lone ``FREQ=...`` is a rule too. The
    zone is the ``TZID`` of DTSTART, UTC if it ends with Z, else ``timezone``, else UTC. Days are
    those that python-dateutil finds; so DTSTART itself fires only when the rule matches it.

    Without DTSTART the rule counts from its anchor (``anchored_at``), or from whatever instant is
    asked about: that gives it the day and the time of day, where the rule names none.

    The wall time stays the same when clocks change. A time that the clock skips is read with the
    offset from before (02:30 fires at 03:30), one that it repeats fires at its first occurrence.

    At most 4,000 characters, 20 rules, ``COUNT=10000``, ``INTERVAL=1000000``, years 1900 to 9899.
    Raises ``InvalidTriggerError``, whose ``field`` names the part: ``"dtstart"``, ``"freq"``,
    ``"byday"``, ``"until"``, ``"exdate"``, ``"timezone"``, or ``"rrule"`` for the whole.
    """

    kind: ClassVar[str] = "rrule"

    text: str
    timezone: str | None = field(default=None)

    def __init__(self, text: str, *, timezone: str | None = None) -> None:
        require_text(text, field="rrule", example=_EXAMPLE)
        if timezone is not None:
            lookup(require_text(timezone, field="timezone", example="Asia/Seoul"))
        schedule = _schedule(text, timezone)
        object.__setattr__(self, "text", schedule.text)
        object.__setattr__(self, "timezone", schedule.recurrence.zone)

    @property
    def spec(self) -> str:
        """Return the text in its normal form: upper case, DTSTART first, with its zone."""
        return self.text

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``, in the years 1900 to 9899."""
        instant = max(utc(instant, field="instant"), _EARLIEST).replace(microsecond=0)
        return _first_after(self, instant) if instant.year <= LAST_YEAR else None

    def phrase(self) -> str:
        """Say the rule in words; one that has no sentence of its own is shown as it is."""
        return describe_recurrence(_schedule(self.text, self.timezone).recurrence)

    def in_zone(self, name: str) -> Trigger:
        """Return this trigger in the zone ``name``, itself if it has a zone already."""
        return self if self.timezone is not None else RRule(self.text, timezone=name)

    def anchored_at(self, instant: datetime) -> Trigger:
        """Return this trigger with ``instant`` as its DTSTART, itself if it has one already."""
        recurrence = _schedule(self.text, self.timezone).recurrence
        if recurrence.dtstart is not None:
            return self
        placed = anchored(recurrence, utc(instant, field="instant"))
        return RRule(placed.text, timezone=placed.zone)


class _Schedule:
    """A recurrence ready for evaluation, shared by all triggers of the same text."""

    def __init__(self, recurrence: Recurrence) -> None:
        self.recurrence = recurrence
        self.text = recurrence.text
        self._zone = lookup(recurrence.zone or "UTC")
        self._rdates = sorted({instant_of(self._zone, date) for date in recurrence.rdates})
        self._exdates = {instant_of(self._zone, date) for date in recurrence.exdates}

    @cached_property
    def _rules(self) -> list[tuple[Rule, Walls]]:
        dtstart = self.recurrence.dtstart
        rules = self.recurrence.rules if dtstart else ()
        return [(rule, Walls(rule, dtstart)) for rule in rules if dtstart]

    def check(self) -> None:
        """Raise ``InvalidTriggerError`` for a rule that never fires."""
        if len(self.text) > MAX_LENGTH:
            reason = f"its normal form is longer than {MAX_LENGTH} characters; shorten it"
            raise refused("rrule", self.text, reason)
        for rule in self.recurrence.rules:
            _check_days(rule, self.recurrence.dtstart)
        for rule, walls in self._rules:
            self._check_rule(rule, walls)
        if self._rules and self.next_after(_EARLIEST) is None:
            reason = "UNTIL and EXDATE leave nothing to fire; exclude less"
            raise refused("rrule", self.text, reason)

    def _check_rule(self, rule: Rule, walls: Walls) -> None:
        until, start = rule.until, self.recurrence.dtstart
        if until and start and instant_of(self._zone, until) < instant_of(self._zone, start):
            raise refused("until", format_moment(until), "lies before DTSTART; choose a later one")
        if walls.first_from(_NO_EARLIER) is None:
            reason = "never fires: DTSTART, INTERVAL, UNTIL and the BY parts never come together"
            raise refused("rrule", format_rule(rule), reason)

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time after an instant in whole seconds."""
        sources: list[_Source] = [self._rdate_after]
        sources += [partial(self._rule_after, *rule) for rule in self._rules]
        following = [source(instant) for source in sources]
        while True:
            found = min((each for each in following if each is not None), default=None)
            if found is None or found not in self._exdates:
                return found
            following = [
                source(found) if each == found else each
                for source, each in zip(sources, following, strict=True)
            ]

    def _rdate_after(self, instant: datetime) -> datetime | None:
        at = bisect_right(self._rdates, instant)
        return self._rdates[at] if at < len(self._rdates) else None

    def _rule_after(self, rule: Rule, walls: Walls, instant: datetime) -> datetime | None:
        found = min(_readings(walls, self._zone, instant), default=None)
        # A naive UNTIL is a wall time, and part of the walls.
        if found is not None and rule.until is not None and rule.until.tzinfo is not None:
            return found if found <= rule.until else None
        return found


def _check_days(rule: Rule, dtstart: datetime | None) -> None:
    if not days_of(day_filter(rule, dtstart)).any():
        reason = "names days that never come together; choose days that exist"
        raise refused("rrule", format_rule(rule), reason)
    if dtstart is None:
        # Refuses what no DTSTART could mend.
        Walls(rule, _NO_EARLIER)


def _readings(walls: Walls, zone: ZoneInfo, instant: datetime) -> Iterator[datetime]:
    """Yield the fire times after ``instant`` that may be the first.

    Wall times follow each other as their instants do, except around a gap: those inside it are
    read with the old offset, so they share their instants with those that follow it.
    """
    shown = wall_at(zone, instant)
    fold = fold_at(zone, instant)
    walls_from = [fold.end if fold and fold.second_pass else shown + _SECOND]
    gap = _recent_gap(zone, instant)
    if gap:
        walls_from.append(shown - gap + _SECOND)
    for start in walls_from:
        wall = walls.first_from(start)
        if wall is None:
            continue
        reading = instant_of(zone, wall)
        if reading > instant:
            yield reading
        change, exists = first_instant(zone, wall)
        later = None if exists else walls.first_from(wall_at(zone, change))
        if later is not None and instant_of(zone, later) > instant:
            yield instant_of(zone, later)


def _recent_gap(zone: ZoneInfo, instant: datetime) -> timedelta | None:
    """Return the length of the gap that ended before ``instant`` by less than its length."""
    now, before = _offset(zone, instant), _offset(zone, instant - _LONGEST_GAP)
    length = now - before
    if length > timedelta() and _offset(zone, instant - length) == before:
        return length
    return None


def _offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta()


@lru_cache(maxsize=1024)
def _schedule(text: str, timezone: str | None) -> _Schedule:
    schedule = _Schedule(parse_recurrence(text, timezone=timezone))
    schedule.check()
    return schedule


@lru_cache(maxsize=8192)
def _first_after(trigger: RRule, instant: datetime) -> datetime | None:
    """Evaluate. Callers round ``instant`` down to the second: fire times fall on whole ones."""
    schedule = _schedule(trigger.text, trigger.timezone)
    if schedule.recurrence.dtstart is None:
        schedule = _Schedule(anchored(schedule.recurrence, instant))
    return schedule.next_after(instant)
