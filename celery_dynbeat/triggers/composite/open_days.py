"""The days on which an ``Excluding`` fires, among those on which its trigger does.

A search ends after MOST_DAYS excluded days or LONGEST, whichever comes first: then there is no fire
time. One that begins at the end of an excluded day is remembered, also when it found nothing,
because each instant of the days before leads to it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from itertools import islice, takewhile
from typing import Protocol

from celery_dynbeat.triggers.base import Trigger
from celery_dynbeat.triggers.budget import SEARCH, Budget
from celery_dynbeat.triggers.interval.steps import EARLIEST, LATEST, day_around
from celery_dynbeat.triggers.search_budget import BEGINNING, LeafWalk
from celery_dynbeat.triggers.zones import lookup

#: Of a daily trigger, more than two years.
MOST_DAYS = 800
#: Each date but 29 February has been on each weekday by then.
LONGEST = timedelta(days=12 * 366)
_DAY, _MICROSECOND = timedelta(days=1), timedelta(microseconds=1)


class Exclusion(Protocol):
    """A trigger, and what takes its days away; hashable, because searches are remembered."""

    def __hash__(self) -> int: ...

    @property
    def trigger(self) -> Trigger:
        """The trigger that fires, possibly made of others."""

    @property
    def dates(self) -> tuple[date, ...]:
        """The dates on which it does not."""

    @property
    def triggers(self) -> tuple[Trigger, ...]:
        """The triggers on whose days it does not: none made of others."""

    @property
    def timezone(self) -> str | None:
        """The zone of the days."""


@dataclass(frozen=True, slots=True)
class _Day:
    fire_time: datetime
    start: datetime
    end: datetime
    open: bool


class OpenDays:
    """The fire times on days that are not excluded, in order."""

    def __init__(self, rule: Exclusion, budget: Budget) -> None:
        self._rule, self._budget = rule, budget
        self._dates = frozenset(rule.dates)
        self._zone = lookup(rule.timezone or "UTC")
        self._fires = rule.trigger.walk(budget)
        self._excluded = [LeafWalk(trigger, budget) for trigger in rule.triggers]
        self._upcoming: datetime | None = BEGINNING
        self._open_until = EARLIEST

    def after(self, instant: datetime) -> datetime | None:
        """Return the first fire time after ``instant``; one that is still to come is known."""
        if self._upcoming is not None and self._upcoming <= instant:
            self._upcoming = self._first_after(instant)
        return self._upcoming

    def _first_after(self, instant: datetime) -> datetime | None:
        fire_time = self._fires.after(max(instant, EARLIEST))
        if fire_time is None or fire_time > LATEST:
            return None
        if fire_time >= self._open_until:
            day = self._day_of(fire_time)
            if not day.open:
                found, steps = _first_open(self._rule, day.end)
                self._budget.spend_once((self._rule, day.end), steps)
                return found
            self._open_until = day.end
        return fire_time

    def days(self, after: datetime) -> Iterator[_Day]:
        """Yield each day with a fire time after ``after``, excluded or not."""
        fire_time = self._fires.after(after)
        while fire_time is not None and fire_time <= LATEST:
            day = self._day_of(fire_time)
            yield day
            # Just before the end, because the next day's midnight may be a fire time.
            fire_time = self._fires.after(day.end - _MICROSECOND)

    def _day_of(self, fire_time: datetime) -> _Day:
        day, start, end = day_around(self._zone, fire_time)
        excluded = day in self._dates or any(
            (found := walk.after(start - _MICROSECOND)) is not None and found < end
            for walk in self._excluded
        )
        return _Day(fire_time, start, end, not excluded)


def latest_open(
    rule: Exclusion, budget: Budget, *, after: datetime, until: datetime
) -> datetime | None:
    """Return the newest fire time in ``(after, until]`` that no excluded day holds.

    Looks back from ``until`` over spans that double, so that no more than twice the excluded days
    before it are looked at.
    """
    after, until = max(after, EARLIEST), min(until, LATEST)
    step, excluded = _DAY, 0
    while after < until and excluded <= MOST_DAYS:
        start = after if until - after <= step else until - step
        days = _days_within(rule, budget, start, until)
        newest = next((day for day in reversed(days) if day.open), None)
        if newest is not None:
            first, last = max(newest.start - _MICROSECOND, start), newest.end - _MICROSECOND
            found = rule.trigger.latest_within(budget, after=first, until=min(last, until))
            return found or newest.fire_time
        until, step, excluded = start, step * 2, excluded + len(days)
    return None


def _days_within(rule: Exclusion, budget: Budget, after: datetime, until: datetime) -> list[_Day]:
    days = OpenDays(rule, budget).days(after)
    return list(takewhile(lambda day: day.fire_time <= until, days))


@lru_cache(maxsize=8192)
def _first_open(rule: Exclusion, end: datetime) -> tuple[datetime | None, int]:
    """Return the first fire time from ``end`` on, the end of an excluded day, and its steps."""
    budget = Budget(SEARCH)
    found = None
    for day in islice(OpenDays(rule, budget).days(end - _MICROSECOND), MOST_DAYS):
        if day.fire_time > end + LONGEST:
            break
        if day.open:
            found = day.fire_time
            break
    return found, budget.spent
