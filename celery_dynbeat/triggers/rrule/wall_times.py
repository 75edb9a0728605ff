"""The wall times of one RRULE from any point on, counted from its DTSTART.

dateutil finds the days of a year that a rule matches (``matching_days``). It is not used to find
the next occurrence, because it starts from DTSTART each time, and searches to the year 9999 if a
rule never fires. INTERVAL, the times of day and BYSETPOS are therefore computed here, and a search
passes over the years at most once.

Wall times are integers: seconds since midnight before ordinal 0. Sets of days and of units (hours,
minutes or seconds of a day) are the bits of an integer.
"""

from array import array
from calendar import isleap
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache, partial
from itertools import islice, product
from typing import NamedTuple

from celery_dynbeat.common.text import LAST_YEAR
from celery_dynbeat.triggers.base import SearchBudget
from celery_dynbeat.triggers.rrule.bitsets import bit_set, bits, month_days, stripes
from celery_dynbeat.triggers.rrule.count_cache import COUNT_CACHE, CountEnd
from celery_dynbeat.triggers.rrule.interval_days import (
    DAY_SECONDS,
    UNIT_SECONDS,
    interval_days,
    week_start,
)
from celery_dynbeat.triggers.rrule.matching_days import day_filter, days_of, first_day
from celery_dynbeat.triggers.rrule.rule import Freq, Numbers, RecurrenceRule, invalid_part

_WEEK = (1 << 7) - 1
_END = DAY_SECONDS * first_day(LAST_YEAR + 1)
# The number of periods after which the calendar repeats: 400 years.
_CALENDAR_PERIODS = {Freq.YEARLY: 400, Freq.MONTHLY: 4800, Freq.WEEKLY: 20871}
# A shorter span costs little to search again, so it is not remembered.
_MIN_REMEMBERED = 366 * DAY_SECONDS
# One step lists this number of days of a period, or sets this number of units of a day.
_DAYS_PER_STEP, _UNITS_PER_STEP = 16, 8192


class _EmptySpan(NamedTuple):
    """A span without wall times. ``end`` is the first wall time after it, or None if there is none.

    A search from ``begin`` takes ``steps``.
    """

    begin: int
    end: int | None
    steps: int


#: An ordinal, and the days of a period counted from it, in order.
_Period = tuple[int, Sequence[int]]


# Many years and rules have the same days, and a year of days is slow to list.
@lru_cache(maxsize=256)
def _listed_days(days: int) -> Sequence[int]:
    return array("H", bits(days))


class RuleWallTimes:
    """Finds the wall times of one rule from its DTSTART on.

    If arithmetic cannot tell where COUNT ends, the constructor visits each occurrence.

    Each year, period and day that is looked at takes one step of a budget. Raises
    ``BudgetExceededError`` when none is left, and ``InvalidTriggerError`` when BYSETPOS selects
    nothing.
    """

    def __init__(self, rule: RecurrenceRule, dtstart: datetime, budget: SearchBudget) -> None:
        self._rule = rule
        self._start = _to_seconds(dtstart)
        self._unit = UNIT_SECONDS.get(rule.freq, DAY_SECONDS)
        self.days = days_of(day_filter(rule, dtstart))
        # A day with seconds costs more, because its set of seconds takes 11 KB.
        self._day_steps = 1 + DAY_SECONDS // self._unit // _UNITS_PER_STEP
        self._times = _listed_times(rule, dtstart)
        self._by_period = bool(rule.bysetpos) and rule.freq < Freq.DAILY
        if rule.bysetpos and not self._by_period:
            self._times = _at_positions(rule, self._times)
        self._interval_days = interval_days(rule, self._start, _allowed_units(rule))
        self._last = _END
        #: The steps to count the rule through, also if they were taken from the cache.
        self.counting_steps = 0
        self._last = self._last_wall(budget)
        self._empty = _EmptySpan(_END, None, 0)

    def first_from(self, wall: datetime, budget: SearchBudget) -> datetime | None:
        """Return the first wall time of the rule at or after ``wall``."""
        return _to_wall(self._first_from(max(_to_seconds(wall), self._start), budget))

    def _first_from(self, wall: int, budget: SearchBudget) -> int | None:
        empty, before = self._empty, budget.spent
        if wall < empty.begin:
            first = next(self._from(wall, before=empty.begin, budget=budget), None)
            if first is None:
                budget.spend(empty.steps)
                first = empty.end
        elif empty.end is not None and empty.end < wall:
            first = next(self._from(wall, before=_END, budget=budget), None)
        else:
            # The search costs as much as the first search, so that a refusal does not depend on
            # earlier searches.
            budget.spend_once((self, empty.begin), empty.steps)
            return empty.end
        if first is None or first - wall > _MIN_REMEMBERED:
            self._empty = _EmptySpan(wall, first, budget.spent - before)
            budget.mark_searched((self, wall))
        return first

    def _from(self, wall: int, *, before: int, budget: SearchBudget) -> Iterator[int]:
        search = self._chosen_from if self._by_period else self._all_from
        for candidate in search(wall, before, budget):
            if candidate > self._last or candidate >= before:
                return
            if candidate >= wall:
                yield candidate

    def _last_wall(self, budget: SearchBudget) -> int:
        rule = self._rule
        if rule.until is not None and rule.until.tzinfo is None:
            return min(_END, _to_seconds(rule.until))
        if rule.count is None:
            return _END
        if rule.is_plain and rule.freq >= Freq.DAILY:
            return min(_END, self._start + (rule.count - 1) * rule.interval * self._unit)
        count = partial(self._counted, rule.count, budget.remaining)
        counted = COUNT_CACHE.get(rule, self._start, count)
        self.counting_steps = counted.steps
        budget.spend(counted.steps)
        return counted.last

    def _counted(self, count: int, limit: float) -> CountEnd:
        budget = SearchBudget(limit)
        walls = self._from(self._start, before=_END, budget=budget)
        return CountEnd(max(islice(walls, count), default=_END), budget.spent)

    def _all_from(self, wall: int, before: int, budget: SearchBudget) -> Iterator[int]:
        day, second = divmod(wall, DAY_SECONDS)
        for ordinal in self._days_from(day, before // DAY_SECONDS, budget):
            units = self._units_on(ordinal)
            if ordinal == day:
                passed = second // self._unit
                units = units >> passed << passed
            for unit in bits(units):
                for time in self._times:
                    yield ordinal * DAY_SECONDS + unit * self._unit + time

    def _days_from(self, day: int, last: int, budget: SearchBudget) -> Iterator[int]:
        for year, allowed in self._interval_days(datetime.fromordinal(day).year):
            first = first_day(year)
            if first > last:
                return
            budget.spend(1)
            days = self.days.of(year) & allowed
            if first < day:
                days = days >> (day - first) << (day - first)
            for bit in bits(days):
                budget.spend(self._day_steps)
                yield first + bit

    def _units_on(self, ordinal: int) -> int:
        """Return the hours, minutes or seconds of a day on which INTERVAL falls."""
        interval, a_day = self._rule.interval, DAY_SECONDS // self._unit
        units = _allowed_units(self._rule)
        if interval == 1 or self._unit == DAY_SECONDS:
            return units
        start_day, start_second = divmod(self._start, DAY_SECONDS)
        first = (start_second // self._unit - (ordinal - start_day) * a_day) % interval
        return units & stripes(first, interval, a_day)

    def _chosen_from(self, wall: int, before: int, budget: SearchBudget) -> Iterator[int]:
        """Yield what BYSETPOS selects. Stop after a whole calendar of empty periods."""
        times, empty = self._times, 0
        for first, days in self._periods_from(wall // DAY_SECONDS, before // DAY_SECONDS):
            budget.spend(1 + len(days) // _DAYS_PER_STEP)
            chosen = _selected_indices(self._rule, len(days) * len(times))
            for at in chosen:
                yield (first + days[at // len(times)]) * DAY_SECONDS + times[at % len(times)]
            empty = 0 if chosen else empty + 1
            if empty > _CALENDAR_PERIODS[self._rule.freq]:
                return

    def _periods_from(self, day: int, last: int) -> Iterator[_Period]:
        """Yield each period on which INTERVAL falls."""
        if self._rule.freq is Freq.WEEKLY:
            return self._weeks_from(day, last)
        return self._years_from(datetime.fromordinal(day).year, last)

    def _years_from(self, start: int, last: int) -> Iterator[_Period]:
        whole = self._rule.freq is Freq.YEARLY
        for year, allowed in self._interval_days(start):
            if first_day(year) > last:
                return
            days = self.days.of(year)
            for month in (-1,) if whole else month_days(leap=isleap(year)):
                if month & allowed:
                    yield first_day(year), _listed_days(days & month)

    def _weeks_from(self, day: int, last: int) -> Iterator[_Period]:
        """Yield the days of each week. As in dateutil, the first week begins with DTSTART."""
        start = self._start // DAY_SECONDS
        origin = week_start(start, self._rule)
        step = 7 * self._rule.interval
        week = origin + (day - origin) // step * step
        while week <= last and week < first_day(LAST_YEAR + 1) - 7:
            year = datetime.fromordinal(week).year
            length = first_day(year + 1) - first_day(year)
            days = self.days.of(year) | self.days.of(year + 1) << length
            within = days >> (week - first_day(year)) & _WEEK
            yield week, [bit for bit in bits(within) if week + bit >= start]
            week += step


def _allowed_units(rule: RecurrenceRule) -> int:
    """Return the hours, minutes or seconds of a day that the BY parts allow."""
    return 1 if rule.freq < Freq.HOURLY else _combined_units(rule.freq, *rule.clock)


# The cache is small, because the seconds of a day take 11 KB.
@lru_cache(maxsize=256)
def _combined_units(freq: Freq, byhour: Numbers, byminute: Numbers, bysecond: Numbers) -> int:
    units = bit_set(byhour or range(24))
    for shorter, numbers in ((Freq.MINUTELY, byminute), (Freq.SECONDLY, bysecond)):
        if freq >= shorter:
            within = bit_set(numbers or range(60))
            units = sum(within << 60 * unit for unit in bits(units))
    return units


def _listed_times(rule: RecurrenceRule, dtstart: datetime) -> Sequence[int]:
    """Return the listed times as seconds of the day, hour or minute, in order."""
    hours = (rule.byhour or (dtstart.hour,)) if rule.freq < Freq.HOURLY else (0,)
    minutes = (rule.byminute or (dtstart.minute,)) if rule.freq < Freq.MINUTELY else (0,)
    seconds = (rule.bysecond or (dtstart.second,)) if rule.freq < Freq.SECONDLY else (0,)
    clock = product(hours, minutes, seconds)
    return array("I", (3600 * hour + 60 * minute + second for hour, minute, second in clock))


def _at_positions(rule: RecurrenceRule, times: Sequence[int]) -> Sequence[int]:
    chosen = array("I", (times[at] for at in _selected_indices(rule, len(times))))
    if not chosen:
        reason = f"each period has {len(times)} occurrences, and none at these positions"
        raise invalid_part("bysetpos", ",".join(map(str, rule.bysetpos)), reason)
    return chosen


def _selected_indices(rule: RecurrenceRule, size: int) -> list[int]:
    """Return the indices, in order, that BYSETPOS selects from ``size`` occurrences."""
    chosen = {at - 1 if at > 0 else size + at for at in rule.bysetpos}
    return sorted(at for at in chosen if 0 <= at < size)


def _to_seconds(wall: datetime) -> int:
    return wall.toordinal() * DAY_SECONDS + wall.hour * 3600 + wall.minute * 60 + wall.second


def _to_wall(seconds: int | None) -> datetime | None:
    if seconds is None:
        return None
    day, second = divmod(seconds, DAY_SECONDS)
    return datetime.fromordinal(day) + timedelta(seconds=second)
