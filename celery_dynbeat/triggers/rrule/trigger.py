"""RRule: fire times by a recurrence rule of RFC 5545, the language of calendars."""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache, partial
from itertools import islice, pairwise
from typing import ClassVar

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers.base import SAMPLE, Trigger, latest_by, require_text, utc
from celery_dynbeat.triggers.budget import (
    LOOKUP,
    PREPARATION,
    SEARCH,
    Budget,
    SpentError,
    unlimited,
)
from celery_dynbeat.triggers.limits import MAX_RRULE
from celery_dynbeat.triggers.rrule.days import day_filter, days_of
from celery_dynbeat.triggers.rrule.instants import readings
from celery_dynbeat.triggers.rrule.parts import Rule, format_moment, format_rule, refused
from celery_dynbeat.triggers.rrule.text import (
    FIRST_YEAR,
    LAST_YEAR,
    Recurrence,
    anchored,
    instant_of,
    parse_recurrence,
)
from celery_dynbeat.triggers.rrule.walls import Walls
from celery_dynbeat.triggers.rrule.words import describe_recurrence
from celery_dynbeat.triggers.search_budget import fire_times
from celery_dynbeat.triggers.zones import lookup

_EARLIEST = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC)
_NO_EARLIER = datetime(FIRST_YEAR, 1, 1)  # noqa: DTZ001 - a time of the wall clock
#: The steps to make one rule ready for its first question.
_RULE = 80
#: Three rules are asked in the time of one lookup.
_RULES_A_LOOKUP = 3
#: More are listed by mistake; and each costs memory.
_MOST_TIMES = 1440
_Source = Callable[[datetime, Budget], datetime | None]
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

    At most 4,000 characters, 20 rules, 1,440 times of day, ``COUNT=1000``, ``INTERVAL=1000000``,
    years 1900 to 9899, and 20,000 steps to count its rules through.
    Raises ``InvalidTriggerError``, whose ``field`` names the part: ``"dtstart"``, ``"freq"``,
    ``"byday"``, ``"until"``, ``"exdate"``, ``"timezone"``, ``"anchor"``, or ``"rrule"`` for the
    whole.
    """

    kind: ClassVar[str] = "rrule"
    max_spec_length: ClassVar[int] = MAX_RRULE
    metered: ClassVar[bool] = True

    text: str
    timezone: str | None = field(default=None)

    def __init__(self, text: str, *, timezone: str | None = None) -> None:
        require_text(text, field="rrule", example=_EXAMPLE)
        if timezone is not None:
            lookup(require_text(timezone, field="timezone", example="Asia/Seoul"))
        normal, zone = _normal_form(text, timezone)
        _schedule(normal, zone).check()
        object.__setattr__(self, "text", normal)
        object.__setattr__(self, "timezone", zone)

    @classmethod
    def from_spec(cls, spec: str, timezone: str | None) -> Trigger:
        """Return the trigger for recurrence text."""
        return cls(spec, timezone=timezone)

    @property
    def spec(self) -> str:
        """Return the text in its normal form: upper case, DTSTART first, with its zone."""
        return self.text

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``, in the years 1900 to 9899."""
        return self.next_within(instant, unlimited())

    def next_within(self, instant: datetime, budget: Budget) -> datetime | None:
        """Return ``next_after(instant)``, paid for from ``budget``."""
        instant = max(utc(instant, field="instant"), _EARLIEST)
        if instant.year > LAST_YEAR:
            return None
        schedule = _schedule(self.text, self.timezone)
        budget.spend(LOOKUP * (1 + len(schedule.recurrence.rules) // _RULES_A_LOOKUP))
        if schedule.recurrence.dtstart is None:
            placed = anchored(schedule.recurrence, instant).dtstart
            schedule = _schedule(self.text, self.timezone, placed)
        # Fire times fall on whole seconds.
        return schedule.next_after(instant.replace(microsecond=0), budget)

    def latest_within(self, budget: Budget, *, after: datetime, until: datetime) -> datetime | None:
        """Return ``latest_until``, each of its searches paid for from ``budget``."""
        after, until = utc(after, field="after"), utc(until, field="until")
        next_after = partial(self.next_within, budget=budget)
        return latest_by(next_after, after=after, until=until)

    def shortest_interval(self, *, after: datetime, sample: int = SAMPLE) -> timedelta | None:
        """Return the shortest distance between two of the next ``sample`` fire times.

        Of fewer, where that takes too many steps: those lie far apart.
        """
        budget = Budget(SEARCH * sample // SAMPLE)
        found = islice(fire_times(self.walk(budget), utc(after, field="after")), sample)
        return min((later - earlier for earlier, later in pairwise(found)), default=None)

    @property
    def preparation(self) -> int:
        """Return the steps to count its rules through, and to make each of them ready."""
        return _preparation(self.text, self.timezone)

    def phrase(self) -> str:
        """Say the rule in words; one that has no sentence of its own is shown as it is."""
        return describe_recurrence(_schedule(self.text, self.timezone).recurrence)

    def in_zone(self, name: str) -> Trigger:
        """Return this trigger in the zone ``name``, itself if it has a zone already."""
        return self if self.timezone is not None else RRule(self.text, timezone=name)

    def anchored_at(self, instant: datetime) -> Trigger:
        """Return this trigger with ``instant`` as its DTSTART, itself if it has one already.

        DTSTART is the next whole minute, the next second if the rule repeats by the second.
        """
        # In the normal form it comes first. Beat asks for each run.
        if self.text.startswith("DTSTART"):
            return self
        instant = utc(instant, field="anchor")
        if not FIRST_YEAR + 1 < instant.year < LAST_YEAR - 1:
            reason = f"the year must lie between {FIRST_YEAR + 1} and {LAST_YEAR - 1}"
            raise refused("anchor", format_moment(instant), reason)
        placed = anchored(_schedule(self.text, self.timezone).recurrence, instant)
        return RRule(placed.text, timezone=placed.zone)


class _Schedule:
    """A recurrence ready for evaluation, shared by all triggers of the same text."""

    def __init__(self, recurrence: Recurrence) -> None:
        self.recurrence = recurrence
        self.text = recurrence.text
        self._zone = lookup(recurrence.zone or "UTC")
        self._rdates = sorted({instant_of(self._zone, date) for date in recurrence.rdates})
        self._exdates = {instant_of(self._zone, date) for date in recurrence.exdates}
        self._checked = False

    @cached_property
    def _rules(self) -> list[tuple[Rule, Walls]]:
        # A rule that was accepted can be counted through.
        return list(self._made(unlimited()))

    def _made(self, budget: Budget) -> Iterator[tuple[Rule, Walls]]:
        # Without DTSTART any does, for what no DTSTART could mend.
        dtstart = self.recurrence.dtstart or _NO_EARLIER
        for rule in self.recurrence.rules:
            try:
                yield rule, Walls(rule, dtstart, budget)
            except SpentError:
                raise _too_long(rule) from None

    @property
    def preparation(self) -> int:
        """Return the steps that it took, or would take, to make its rules ready."""
        return sum(_RULE + walls.counting for _, walls in self._rules)

    def check(self) -> None:
        """Raise ``InvalidTriggerError`` for a rule that never fires."""
        if self._checked:
            return
        budget = Budget(PREPARATION)
        self._check_times()
        for rule in self.recurrence.rules:
            _check_days(rule, self.recurrence.dtstart)
        self._rules = list(self._made(budget))
        for rule, walls in self._rules:
            try:
                self._check_rule(rule, walls, budget)
            except SpentError:
                raise _too_long(rule) from None
        self._check_fires(budget)
        self._checked = True

    def _check_fires(self, budget: Budget) -> None:
        if self.recurrence.dtstart is None:
            return
        try:
            found = self.next_after(_EARLIEST, budget)
        except SpentError:
            reason = f"{_too_many()} to find its first fire time; exclude fewer dates"
            raise refused("rrule", self.text, reason) from None
        if found is None:
            reason = "UNTIL and EXDATE leave nothing to fire; exclude less"
            raise refused("rrule", self.text, reason)

    def _check_times(self) -> None:
        rules = self.recurrence.rules
        number = sum(rule.times for rule in rules)
        if number > _MOST_TIMES:
            most = max(rules, key=lambda rule: rule.times)
            reason = f"{number} times a day; repeat by FREQ=MINUTELY or SECONDLY instead"
            raise refused("bysecond", ",".join(map(str, most.bysecond)), reason)

    def _check_rule(self, rule: Rule, walls: Walls, budget: Budget) -> None:
        until, start = rule.until, self.recurrence.dtstart
        if start is None:
            return
        if until and instant_of(self._zone, until) < instant_of(self._zone, start):
            raise refused("until", format_moment(until), "lies before DTSTART; choose a later one")
        if walls.first_from(_NO_EARLIER, budget) is None:
            reason = "never fires: DTSTART, INTERVAL, UNTIL and the BY parts never come together"
            raise refused("rrule", format_rule(rule), reason)

    def next_after(self, instant: datetime, budget: Budget) -> datetime | None:
        """Return the first fire time after an instant in whole seconds."""
        sources: list[_Source] = [self._rdate_after]
        sources += [partial(self._rule_after, *rule) for rule in self._rules]
        following = [source(instant, budget) for source in sources]
        while True:
            found = min((each for each in following if each is not None), default=None)
            if found is None or found not in self._exdates:
                return found
            following = [
                source(found, budget) if each == found else each
                for source, each in zip(sources, following, strict=True)
            ]

    def _rdate_after(self, instant: datetime, _: Budget) -> datetime | None:
        at = bisect_right(self._rdates, instant)
        return self._rdates[at] if at < len(self._rdates) else None

    def _rule_after(
        self, rule: Rule, walls: Walls, instant: datetime, budget: Budget
    ) -> datetime | None:
        found = min(readings(walls, self._zone, instant, budget), default=None)
        # A naive UNTIL is a wall time, and part of the walls.
        if found is not None and rule.until is not None and rule.until.tzinfo is not None:
            return found if found <= rule.until else None
        return found


def _too_many() -> str:
    return f"takes more than {PREPARATION} steps (years, periods and days looked at)"


def _too_long(rule: Rule) -> InvalidTriggerError:
    if rule.count is not None:
        reason = f"{_too_many()} to count through; set UNTIL, or the schedule's max_runs"
        return refused("count", format_rule(rule), reason)
    reason = f"{_too_many()} to search; choose a shorter INTERVAL or fewer rules"
    return refused("rrule", format_rule(rule), reason)


def _check_days(rule: Rule, dtstart: datetime | None) -> None:
    if not days_of(day_filter(rule, dtstart)).any():
        reason = "names days that never come together; choose days that exist"
        raise refused("rrule", format_rule(rule), reason)


@lru_cache(maxsize=1024)
def _normal_form(text: str, timezone: str | None) -> tuple[str, str | None]:
    recurrence = parse_recurrence(text, timezone=timezone)
    if len(recurrence.text) > MAX_RRULE:
        reason = f"its normal form is longer than {MAX_RRULE} characters; shorten it"
        raise refused("rrule", recurrence.text, reason)
    return recurrence.text, recurrence.zone


@lru_cache(maxsize=8192)
def _preparation(text: str, timezone: str | None) -> int:
    return _schedule(text, timezone).preparation


@lru_cache(maxsize=256)
def _schedule(text: str, timezone: str | None, anchor: datetime | None = None) -> _Schedule:
    """Return what text in its normal form means, counted from ``anchor`` where it has no DTSTART.

    One for all: what was counted when a trigger was made is there when it is asked.
    """
    recurrence = parse_recurrence(text, timezone=timezone)
    if anchor is not None:
        recurrence = replace(recurrence, dtstart=anchor, zone=recurrence.zone or "UTC")
    return _Schedule(recurrence)
