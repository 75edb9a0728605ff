"""Search the fire times of a trigger on the days that are not excluded.

A search ends after MAX_EXCLUDED_DAYS days or LONGEST_SEARCH, whichever comes first: then there is
no fire time. Searches from the end of an excluded day are cached, also those without a result.
Each instant of the days before leads to the same search.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from itertools import islice, takewhile
from typing import Protocol

from celery_dynbeat.triggers.base import Trigger
from celery_dynbeat.triggers.cursors import MIN_INSTANT, SingleCursor
from celery_dynbeat.triggers.limits import EARLIEST, LATEST
from celery_dynbeat.triggers.local_days import day_around
from celery_dynbeat.triggers.search_budget import (
    SEARCH_STEPS,
    BudgetExceededError,
    SearchBudget,
)
from celery_dynbeat.triggers.zones import load_zone

#: More than two years of a daily trigger.
MAX_EXCLUDED_DAYS = 800
#: In this time each date except 29 February falls on each weekday.
LONGEST_SEARCH = timedelta(days=12 * 366)
_DAY, _MICROSECOND = timedelta(days=1), timedelta(microseconds=1)


class Exclusion(Protocol):
    """A trigger and the days that are excluded from it. It is a cache key, so it is hashable."""

    def __hash__(self) -> int: ...

    @property
    def trigger(self) -> Trigger:
        """The trigger that fires. It may combine others."""

    @property
    def dates(self) -> tuple[date, ...]:
        """The excluded dates."""

    @property
    def triggers(self) -> tuple[Trigger, ...]:
        """The triggers whose days are excluded. None of them combines others."""

    @property
    def timezone(self) -> str | None:
        """The zone of the days."""


@dataclass(frozen=True, slots=True)
class _FireDay:
    """A day with a fire time."""

    fire_time: datetime
    start: datetime
    end: datetime
    is_excluded: bool


class ExcludingCursor:
    """A cursor over the fire times on days that are not excluded."""

    def __init__(self, exclusion: Exclusion, budget: SearchBudget) -> None:
        self._exclusion, self._budget = exclusion, budget
        self._dates = frozenset(exclusion.dates)
        self._zone = load_zone(exclusion.timezone or "UTC")
        self._fires = exclusion.trigger.cursor(budget)
        self._excluded = [SingleCursor(trigger, budget) for trigger in exclusion.triggers]
        self._upcoming: datetime | None = MIN_INSTANT
        # The end of the last day that was found not to be excluded.
        self._included_until = EARLIEST

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time after ``instant``."""
        if self._upcoming is not None and self._upcoming <= instant:
            self._upcoming = self._search(instant)
        return self._upcoming

    def _search(self, instant: datetime) -> datetime | None:
        fire_time = self._fires.next_after(max(instant, EARLIEST))
        if fire_time is None or fire_time > LATEST:
            return None
        if fire_time >= self._included_until:
            day = self._day_of(fire_time)
            if day.is_excluded:
                try:
                    found, steps = _first_included(self._exclusion, day.end)
                except BudgetExceededError:
                    self._budget.spend(SEARCH_STEPS)
                    raise
                self._budget.spend_once((self._exclusion, day.end), steps)
                return found
            self._included_until = day.end
        return fire_time

    def days(self, after: datetime) -> Iterator[_FireDay]:
        """Yield each day with a fire time after ``after``, excluded or not."""
        fire_time = self._fires.next_after(after)
        while fire_time is not None and fire_time <= LATEST:
            day = self._day_of(fire_time)
            yield day
            # A microsecond before the end, because the next midnight may be a fire time.
            fire_time = self._fires.next_after(day.end - _MICROSECOND)

    def _day_of(self, fire_time: datetime) -> _FireDay:
        day, start, end = day_around(self._zone, fire_time)
        is_excluded = day in self._dates or any(
            (found := cursor.next_after(start - _MICROSECOND)) is not None and found < end
            for cursor in self._excluded
        )
        return _FireDay(fire_time, start, end, is_excluded)


def latest_included(
    exclusion: Exclusion, budget: SearchBudget, *, after: datetime, until: datetime
) -> datetime | None:
    """Return the newest fire time in ``(after, until]`` on a day that is not excluded.

    The search looks back from ``until`` over spans that double. So it looks at no more than twice
    the excluded days before ``until``.
    """
    after, until = max(after, EARLIEST), min(until, LATEST)
    step, excluded = _DAY, 0
    while after < until and excluded <= MAX_EXCLUDED_DAYS:
        start = after if until - after <= step else until - step
        days = _days_within(exclusion, budget, after=start, until=until)
        newest = next((day for day in reversed(days) if not day.is_excluded), None)
        if newest is not None:
            first, last = max(newest.start - _MICROSECOND, start), newest.end - _MICROSECOND
            found = exclusion.trigger.latest_within(budget, after=first, until=min(last, until))
            return found or newest.fire_time
        until, step, excluded = start, step * 2, excluded + len(days)
    return None


def _days_within(
    exclusion: Exclusion, budget: SearchBudget, *, after: datetime, until: datetime
) -> list[_FireDay]:
    days = ExcludingCursor(exclusion, budget).days(after)
    return list(takewhile(lambda day: day.fire_time <= until, days))


@lru_cache(maxsize=8192)
def _first_included(exclusion: Exclusion, end: datetime) -> tuple[datetime | None, int]:
    """Return the first fire time from ``end``, the end of an excluded day, and its steps."""
    budget = SearchBudget(SEARCH_STEPS)
    found = None
    days = ExcludingCursor(exclusion, budget).days(end - _MICROSECOND)
    for day in islice(days, MAX_EXCLUDED_DAYS):
        if day.fire_time > end + LONGEST_SEARCH:
            break
        if not day.is_excluded:
            found = day.fire_time
            break
    return found, budget.spent
