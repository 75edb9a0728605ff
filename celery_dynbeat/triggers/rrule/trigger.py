"""RRule: fire times by a recurrence rule of RFC 5545, as calendars use it."""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, lru_cache, partial
from typing import ClassVar
from zoneinfo import ZoneInfo

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import EARLIEST, FIRST_YEAR, LAST_YEAR
from celery_dynbeat.triggers.base import (
    LOOKUP_STEPS,
    MAX_RRULE_LENGTH,
    PREPARATION_STEPS,
    BudgetExceededError,
    SearchBudget,
    Trigger,
    latest_by,
    require_text,
    unlimited_budget,
    utc,
)
from celery_dynbeat.triggers.rrule.days import DayFilter, RuleWallTimes, matching_days
from celery_dynbeat.triggers.rrule.description import describe_recurrence
from celery_dynbeat.triggers.rrule.text import (
    Recurrence,
    RecurrenceRule,
    anchored,
    format_moment,
    format_rule,
    instant_of,
    invalid_part,
    parse_recurrence,
)
from celery_dynbeat.triggers.zones import (
    first_instant,
    gap_before,
    load_zone,
    next_wall,
    wall_at,
    zone_name,
)

_FIRST_WALL = datetime(FIRST_YEAR, 1, 1)  # noqa: DTZ001 - a wall time
#: The steps to prepare one rule, apart from those to count it.
_RULE_STEPS = 80
#: A text with more times lists them by mistake, and each takes memory.
_MAX_TIMES = 1440
_Source = Callable[[datetime, SearchBudget], datetime | None]
_EXCEEDED = f"takes more than {PREPARATION_STEPS} steps (years, periods and days looked at)"


class PreparedRecurrence:
    """Finds the fire times of a recurrence. All triggers with the same text share it."""

    def __init__(self, recurrence: Recurrence) -> None:
        self.recurrence = recurrence
        self.text = recurrence.text
        self._zone = load_zone(recurrence.zone or "UTC")
        self._rdates = sorted({instant_of(self._zone, date) for date in recurrence.rdates})
        self._exdates = {instant_of(self._zone, date) for date in recurrence.exdates}
        self._is_checked = False

    @cached_property
    def _rules(self) -> list[tuple[RecurrenceRule, RuleWallTimes]]:
        # Accepted rules can be counted through.
        return list(self._prepare_rules(unlimited_budget()))

    def _prepare_rules(
        self, budget: SearchBudget
    ) -> Iterator[tuple[RecurrenceRule, RuleWallTimes]]:
        # If DTSTART is missing, any start reveals the errors that do not depend on it.
        dtstart = self.recurrence.dtstart or _FIRST_WALL
        for rule in self.recurrence.rules:
            try:
                yield rule, RuleWallTimes(rule, dtstart, budget)
            except BudgetExceededError:
                raise _too_long(rule, dtstart) from None

    @property
    def preparation_steps(self) -> int:
        """Return the steps to prepare the rules, also if a cache made some unnecessary."""
        return sum(_RULE_STEPS + times.counting_steps for _, times in self._rules)

    def check(self) -> None:
        """Raise ``InvalidTriggerError`` for a rule that never fires."""
        if self._is_checked:
            return
        budget = SearchBudget(PREPARATION_STEPS)
        self._check_times()
        for rule in self.recurrence.rules:
            _check_days(rule, self.recurrence.dtstart)
        self._rules = list(self._prepare_rules(budget))
        for rule, times in self._rules:
            try:
                self._check_rule(rule, times, budget)
            except BudgetExceededError:
                raise _too_long(rule, self.recurrence.dtstart) from None
        self._check_fires(budget)
        self._is_checked = True

    def _check_fires(self, budget: SearchBudget) -> None:
        if self.recurrence.dtstart is None:
            return
        try:
            first = self.next_after(EARLIEST, budget)
        except BudgetExceededError:
            reason = f"{_EXCEEDED} to find its first fire time; exclude fewer dates or rules"
            raise invalid_part("rrule", self.text, reason) from None
        if first is None:
            reason = "UNTIL and EXDATE leave nothing to fire; exclude less"
            raise invalid_part("rrule", self.text, reason)

    def _check_times(self) -> None:
        rules = self.recurrence.rules
        number = sum(rule.times for rule in rules)
        if number > _MAX_TIMES:
            most = max(rules, key=lambda rule: rule.times)
            reason = f"{number} times a day; repeat by FREQ=MINUTELY or SECONDLY instead"
            raise invalid_part("bysecond", ",".join(map(str, most.bysecond)), reason)

    def _check_rule(self, rule: RecurrenceRule, times: RuleWallTimes, budget: SearchBudget) -> None:
        until, start = rule.until, self.recurrence.dtstart
        if start is None:
            return
        if until and instant_of(self._zone, until) < instant_of(self._zone, start):
            raise invalid_part(
                "until", format_moment(until), "lies before DTSTART; choose a later one"
            )
        if times.first_from(_FIRST_WALL, budget) is None:
            reason = "never fires: DTSTART, INTERVAL, UNTIL and the BY parts never occur together"
            raise invalid_part("rrule", format_rule(rule), reason)

    def next_after(self, instant: datetime, budget: SearchBudget) -> datetime | None:
        """Return the first fire time after an instant in whole seconds."""
        sources: list[_Source] = [self._rdate_after]
        sources += [partial(self._rule_after, *rule) for rule in self._rules]
        following = [source(instant, budget) for source in sources]
        while True:
            fire_time = min((at for at in following if at is not None), default=None)
            if fire_time is None or fire_time not in self._exdates:
                return fire_time
            following = [
                source(fire_time, budget) if at == fire_time else at
                for source, at in zip(sources, following, strict=True)
            ]

    def _rdate_after(self, instant: datetime, _: SearchBudget) -> datetime | None:
        at = bisect_right(self._rdates, instant)
        return self._rdates[at] if at < len(self._rdates) else None

    def _rule_after(
        self, rule: RecurrenceRule, times: RuleWallTimes, instant: datetime, budget: SearchBudget
    ) -> datetime | None:
        fire_time = min(_candidates(times, self._zone, instant, budget), default=None)
        # A naive UNTIL is a wall time, which RuleWallTimes applies.
        if fire_time is not None and rule.until is not None and rule.until.tzinfo is not None:
            return fire_time if fire_time <= rule.until else None
        return fire_time


def _candidates(
    times: RuleWallTimes, zone: ZoneInfo, instant: datetime, budget: SearchBudget
) -> Iterator[datetime]:
    """Yield fire times after ``instant``, of which the earliest is the next one.

    Wall times and their instants have the same order, except around a gap. Wall times in the gap
    are read with the old offset, so they share their instants with the wall times after the gap.
    """
    starts = [next_wall(zone, instant)]
    gap = gap_before(zone, instant)
    if gap:
        starts.append(starts[0] - gap.length)
    for start in starts:
        wall = times.first_from(start, budget)
        if wall is None:
            continue
        candidate = instant_of(zone, wall)
        if candidate > instant:
            yield candidate
        change, exists = first_instant(zone, wall)
        later = None if exists else times.first_from(wall_at(zone, change), budget)
        if later is not None and instant_of(zone, later) > instant:
            yield instant_of(zone, later)


def _too_long(rule: RecurrenceRule, dtstart: datetime | None) -> InvalidTriggerError:
    """Return the error of a rule for which the steps do not suffice, with what helps."""
    times = RuleWallTimes(rule.without_count(), dtstart or _FIRST_WALL, unlimited_budget())
    try:
        times.first_from(_FIRST_WALL, SearchBudget(PREPARATION_STEPS))
    except BudgetExceededError:
        reason = (
            f"{_EXCEEDED} to find its first fire time, or never fires; choose a DTSTART at which"
            " the BY parts match, or a shorter INTERVAL"
        )
        return invalid_part("rrule", format_rule(rule), reason)
    if rule.count is not None:
        reason = f"{_EXCEEDED} to count through; set UNTIL, or the schedule's max_runs"
        return invalid_part("count", format_rule(rule), reason)
    reason = f"{_EXCEEDED} to search; choose a shorter INTERVAL or fewer rules"
    return invalid_part("rrule", format_rule(rule), reason)


def _check_days(rule: RecurrenceRule, dtstart: datetime | None) -> None:
    if not matching_days(DayFilter.of(rule, dtstart)).any():
        reason = "names days that never occur together; choose days that exist"
        raise invalid_part("rrule", format_rule(rule), reason)


@lru_cache(maxsize=1024)
def normal_form(text: str, timezone: str | None) -> tuple[str, str | None]:
    """Return the normal form of recurrence text, and its zone."""
    recurrence = parse_recurrence(text, timezone=timezone)
    if len(recurrence.text) > MAX_RRULE_LENGTH:
        reason = f"its normal form is longer than {MAX_RRULE_LENGTH} characters; shorten it"
        raise invalid_part("rrule", recurrence.text, reason)
    return recurrence.text, recurrence.zone


@lru_cache(maxsize=8192)
def preparation_steps(text: str, timezone: str | None) -> int:
    """Return the steps to prepare the rules of a text in normal form."""
    return prepare(text, timezone).preparation_steps


@lru_cache(maxsize=256)
def prepare(text: str, timezone: str | None, anchor: datetime | None = None) -> PreparedRecurrence:
    """Return the recurrence of a text in normal form. ``anchor`` is DTSTART if the text has none.

    It is cached, because a search needs the count that the check of the trigger has computed.
    """
    recurrence = parse_recurrence(text, timezone=timezone)
    if anchor is not None:
        recurrence = replace(recurrence, dtstart=anchor, zone=recurrence.zone or "UTC")
    return PreparedRecurrence(recurrence)


#: The number of rules that can be searched in the time of one lookup.
_RULES_PER_LOOKUP = 3
_EXAMPLE = "DTSTART;TZID=Europe/Berlin:20260105T090000\nRRULE:FREQ=WEEKLY;BYDAY=MO"


@dataclass(frozen=True, slots=True, init=False)
class RRule(Trigger):
    """Fire by a recurrence rule of RFC 5545: ``DTSTART``, ``RRULE``, ``RDATE``, ``EXDATE``.

    The fire times of several rules and dates are combined, and ``EXDATE`` removes fire times. A
    single ``FREQ=...`` is also a rule. The zone is the ``TZID`` of DTSTART, or UTC if DTSTART ends
    with Z, or else ``timezone``, or else UTC. The matching days are the same as in python-dateutil,
    so DTSTART fires only if the rule matches it.

    Without DTSTART, the rule counts from its anchor (``anchored_at``), or from the argument of each
    search. The anchor provides the day and the time of day if the rule has none.

    The wall-clock time stays the same when clocks change. A skipped time is read with the offset
    before the gap (02:30 fires at 03:30). A repeated time fires at its first occurrence.

    Limits: 4,000 characters, 20 rules, 1,440 times of day, ``COUNT=1000``, ``INTERVAL=1000000``,
    years 1900 to 9899, and 20,000 steps for counting through its rules.

    Raises ``InvalidTriggerError``. ``field`` names the invalid part: ``"dtstart"``, ``"freq"``,
    ``"byday"``, ``"until"``, ``"exdate"``, ``"timezone"`` or ``"anchor"``, or ``"rrule"`` for the
    whole rule.

    >>> last_friday = RRule("FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9;BYMINUTE=0", timezone="Asia/Seoul")
    >>> last_friday.describe()
    'On the last Friday of every month at 09:00, Asia/Seoul'
    >>> str(last_friday.next_after(datetime(2026, 11, 21, tzinfo=UTC)))
    '2026-11-27 00:00:00+00:00'
    """

    kind: ClassVar[str] = "rrule"
    max_spec_length: ClassVar[int] = MAX_RRULE_LENGTH
    needs_budget: ClassVar[bool] = True

    text: str
    timezone: str | None = field(default=None)

    def __init__(self, text: str, *, timezone: str | ZoneInfo | None = None) -> None:
        text = require_text(text, field="rrule", example=_EXAMPLE)
        timezone = None if timezone is None else zone_name(timezone)
        normal, zone = normal_form(text, timezone)
        prepare(normal, zone).check()
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

    def to_text(self) -> str:
        """Return the lines with blanks between them. A zone without DTSTART comes first."""
        text = " ".join(self.text.split("\n"))
        names_zone = self.timezone is None or text.startswith("DTSTART")
        return text if names_zone else f"TZ={self.timezone} {text}"

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``, in the years 1900 to 9899."""
        return self.next_within(instant, unlimited_budget())

    def next_within(self, instant: datetime, budget: SearchBudget) -> datetime | None:
        """Return ``next_after(instant)``. Take its steps from ``budget``."""
        instant = max(utc(instant, field="instant"), EARLIEST)
        if instant.year > LAST_YEAR:
            return None
        prepared = prepare(self.text, self.timezone)
        budget.spend(LOOKUP_STEPS * (1 + len(prepared.recurrence.rules) // _RULES_PER_LOOKUP))
        if prepared.recurrence.dtstart is None:
            dtstart = anchored(prepared.recurrence, instant).dtstart
            prepared = prepare(self.text, self.timezone, dtstart)
        # Fire times fall on whole seconds.
        return prepared.next_after(instant.replace(microsecond=0), budget)

    def latest_within(
        self, budget: SearchBudget, *, after: datetime, until: datetime
    ) -> datetime | None:
        """Return ``latest_until``. Each search takes its steps from ``budget``."""
        after, until = utc(after, field="after"), utc(until, field="until")
        next_after = partial(self.next_within, budget=budget)
        return latest_by(next_after, after=after, until=until)

    @property
    def preparation_steps(self) -> int:
        """Return the steps to count its rules through and to prepare each of them."""
        return preparation_steps(self.text, self.timezone)

    def phrase(self, timezone: str | None = None) -> str:  # noqa: ARG002 - it has no instant
        """Describe the rule in words, or as it is written if there are no words for it."""
        return describe_recurrence(prepare(self.text, self.timezone).recurrence)

    @property
    def needs_zone(self) -> bool:
        """Whether it names no zone."""
        return self.timezone is None

    def in_zone(self, name: str) -> Trigger:
        """Return this trigger in the zone ``name``, itself if it has a zone already."""
        return self if self.timezone is not None else RRule(self.text, timezone=name)

    def anchored_at(self, instant: datetime) -> Trigger:
        """Return this trigger with ``instant`` as its DTSTART, itself if it has DTSTART already.

        DTSTART is the next whole minute, or the next second if the rule repeats by the second.
        """
        # DTSTART comes first in the normal form. Beat calls this for each run, so it must be fast.
        if self.text.startswith("DTSTART"):
            return self
        instant = utc(instant, field="anchor")
        if not FIRST_YEAR + 1 < instant.year < LAST_YEAR - 1:
            reason = f"the year must lie between {FIRST_YEAR + 1} and {LAST_YEAR - 1}"
            raise invalid_part("anchor", format_moment(instant), reason)
        recurrence = anchored(prepare(self.text, self.timezone).recurrence, instant)
        return RRule(recurrence.text, timezone=recurrence.zone)
