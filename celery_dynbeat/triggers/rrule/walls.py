"""Wall times of one RRULE, counted from its DTSTART, from any point on.

dateutil says which days of a year a rule names (``rrule_days``). It cannot say when a rule fires
next: it walks from DTSTART at each question, and for a rule that never fires to the year 9999. So
the phase of INTERVAL, the times of day and BYSETPOS are arithmetic here, and no question takes more
than one pass over the years.

Wall times are integers: seconds since midnight before ordinal 0. Sets of days and of units (hours,
minutes or seconds of a day) are integers too, bit by bit.
"""

from array import array
from calendar import isleap
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache, partial
from itertools import islice, product
from typing import NamedTuple

from celery_dynbeat.triggers.budget import Budget
from celery_dynbeat.triggers.rrule.bits import bit_set, bits, spans, stripes
from celery_dynbeat.triggers.rrule.counts import COUNTS, Counted
from celery_dynbeat.triggers.rrule.days import day_filter, days_of, first_day
from celery_dynbeat.triggers.rrule.parts import Freq, Numbers, Rule, refused
from celery_dynbeat.triggers.rrule.phases import DAY, UNIT_SECONDS, phases, week_start
from celery_dynbeat.triggers.rrule.text import LAST_YEAR

_WEEK = (1 << 7) - 1
_END = DAY * first_day(LAST_YEAR + 1)
# After so many periods the calendar repeats: 400 years.
_PERIODS_OF_ALL = {Freq.YEARLY: 400, Freq.MONTHLY: 4800, Freq.WEEKLY: 20871}
# A stretch without wall times is worth remembering when walking it again would cost something.
_LONG = 366 * DAY
# To list so many days of a period, or to lay out so many units of a day, takes as long as a step.
_DAYS_A_STEP, _UNITS_A_STEP = 16, 8192


class _Barren(NamedTuple):
    """A stretch in which no wall time lies, to the one at its end; None: there is none at all.

    ``steps`` are those of a search from its begin.
    """

    begin: int
    end: int | None
    steps: int


class Walls:
    """One rule from its DTSTART on. Building it counts COUNT through, where arithmetic cannot.

    Each year, period and day that is looked at is one step of a budget. Raises ``SpentError`` when
    none is left, ``InvalidTriggerError`` when BYSETPOS chooses nothing.
    """

    def __init__(self, rule: Rule, dtstart: datetime, budget: Budget) -> None:
        self._rule = rule
        self._start = _seconds(dtstart)
        self._unit = UNIT_SECONDS.get(rule.freq, DAY)
        self.days = days_of(day_filter(rule, dtstart))
        # The seconds of a day are 11 KB of bits.
        self._day_steps = 1 + DAY // self._unit // _UNITS_A_STEP
        self._times = _times(rule, dtstart)
        self._by_period = bool(rule.bysetpos) and rule.freq < Freq.DAILY
        if rule.bysetpos and not self._by_period:
            self._times = _at_positions(rule, self._times)
        self._phases = phases(rule, self._start, _units(rule))
        self._last = _END
        #: The steps that it took to count it through, now or when that was done.
        self.counting = 0
        self._last = self._last_wall(budget)
        self._barren = _Barren(_END, None, 0)

    def first_from(self, wall: datetime, budget: Budget) -> datetime | None:
        """Return the first wall time of the rule at or after ``wall``."""
        return _wall(self._first_from(max(_seconds(wall), self._start), budget))

    def _first_from(self, wall: int, budget: Budget) -> int | None:
        barren, before = self._barren, budget.spent
        if wall < barren.begin:
            found = next(self._from(wall, before=barren.begin, budget=budget), None)
            if found is None:
                budget.spend(barren.steps)
                found = barren.end
        elif barren.end is not None and barren.end < wall:
            found = next(self._from(wall, before=_END, budget=budget), None)
        else:
            # As without this memory, so that a refusal does not depend on what was asked before.
            budget.spend_once((self, barren.begin), barren.steps)
            return barren.end
        if found is None or found - wall > _LONG:
            self._barren = _Barren(wall, found, budget.spent - before)
            budget.note((self, wall))
        return found

    def _from(self, wall: int, *, before: int, budget: Budget) -> Iterator[int]:
        search = self._chosen_from if self._by_period else self._all_from
        for found in search(wall, before, budget):
            if found > self._last or found >= before:
                return
            if found >= wall:
                yield found

    def _last_wall(self, budget: Budget) -> int:
        rule = self._rule
        if rule.until is not None and rule.until.tzinfo is None:
            return min(_END, _seconds(rule.until))
        if rule.count is None:
            return _END
        if rule.is_plain and rule.freq >= Freq.DAILY:
            return min(_END, self._start + (rule.count - 1) * rule.interval * self._unit)
        count = partial(self._counted, rule.count, budget.left)
        counted = COUNTS.get(rule, self._start, count)
        self.counting = counted.steps
        budget.spend(counted.steps)
        return counted.last

    def _counted(self, count: int, limit: float) -> Counted:
        budget = Budget(limit)
        walls = self._from(self._start, before=_END, budget=budget)
        return Counted(max(islice(walls, count), default=_END), budget.spent)

    def _all_from(self, wall: int, before: int, budget: Budget) -> Iterator[int]:
        day, second = divmod(wall, DAY)
        for ordinal in self._days_from(day, before // DAY, budget):
            units = self._units_on(ordinal)
            if ordinal == day:
                passed = second // self._unit
                units = units >> passed << passed
            for unit in bits(units):
                for time in self._times:
                    yield ordinal * DAY + unit * self._unit + time

    def _days_from(self, day: int, last: int, budget: Budget) -> Iterator[int]:
        for year, phase in self._phases(datetime.fromordinal(day).year):
            first = first_day(year)
            if first > last:
                return
            budget.spend(1)
            days = self.days.of(year) & phase
            if first < day:
                days = days >> (day - first) << (day - first)
            for bit in bits(days):
                budget.spend(self._day_steps)
                yield first + bit

    def _units_on(self, ordinal: int) -> int:
        """Return the hours, minutes or seconds of a day that the rule's interval falls on."""
        interval, a_day = self._rule.interval, DAY // self._unit
        units = _units(self._rule)
        if interval == 1 or self._unit == DAY:
            return units
        start_day, start_second = divmod(self._start, DAY)
        first = (start_second // self._unit - (ordinal - start_day) * a_day) % interval
        return units & stripes(first, interval, a_day)

    def _chosen_from(self, wall: int, before: int, budget: Budget) -> Iterator[int]:
        """Yield what BYSETPOS chooses; end after as many barren periods as the calendar has."""
        times, barren = self._times, 0
        for days in self._periods_from(wall // DAY, before // DAY):
            budget.spend(1 + len(days) // _DAYS_A_STEP)
            chosen = _positions(self._rule, len(days) * len(times))
            for at in chosen:
                yield days[at // len(times)] * DAY + times[at % len(times)]
            barren = 0 if chosen else barren + 1
            if barren > _PERIODS_OF_ALL[self._rule.freq]:
                return

    def _periods_from(self, day: int, last: int) -> Iterator[list[int]]:
        """Yield the days of each period that the interval falls on."""
        if self._rule.freq is Freq.WEEKLY:
            return self._weeks_from(day, last)
        return self._years_from(datetime.fromordinal(day).year, last)

    def _years_from(self, start: int, last: int) -> Iterator[list[int]]:
        whole = self._rule.freq is Freq.YEARLY
        for year, phase in self._phases(start):
            if first_day(year) > last:
                return
            days = self.days.of(year)
            for span in (-1,) if whole else spans(leap=isleap(year)):
                if span & phase:
                    yield [first_day(year) + bit for bit in bits(days & span)]

    def _weeks_from(self, day: int, last: int) -> Iterator[list[int]]:
        """Yield the days of each week; the first begins with DTSTART, as dateutil's does."""
        start = self._start // DAY
        origin = week_start(start, self._rule)
        step = 7 * self._rule.interval
        week = origin + (day - origin) // step * step
        while week <= last and week < first_day(LAST_YEAR + 1) - 7:
            year = datetime.fromordinal(week).year
            length = first_day(year + 1) - first_day(year)
            days = self.days.of(year) | self.days.of(year + 1) << length
            within = days >> (week - first_day(year)) & _WEEK
            yield [week + bit for bit in bits(within) if week + bit >= start]
            week += step


def _units(rule: Rule) -> int:
    """Return the hours, minutes or seconds of a day that the BY parts allow."""
    return 1 if rule.freq < Freq.HOURLY else _units_of(rule.freq, *rule.clock)


# Shared, and kept for some rules only: the seconds of a day are 11 KB.
@lru_cache(maxsize=256)
def _units_of(freq: Freq, byhour: Numbers, byminute: Numbers, bysecond: Numbers) -> int:
    units = bit_set(byhour or range(24))
    for shorter, numbers in ((Freq.MINUTELY, byminute), (Freq.SECONDLY, bysecond)):
        if freq >= shorter:
            within = bit_set(numbers or range(60))
            units = sum(within << 60 * unit for unit in bits(units))
    return units


def _times(rule: Rule, dtstart: datetime) -> Sequence[int]:
    """Return the seconds within a day, or within an hour or minute, in order."""
    hours = (rule.byhour or (dtstart.hour,)) if rule.freq < Freq.HOURLY else (0,)
    minutes = (rule.byminute or (dtstart.minute,)) if rule.freq < Freq.MINUTELY else (0,)
    seconds = (rule.bysecond or (dtstart.second,)) if rule.freq < Freq.SECONDLY else (0,)
    clock = product(hours, minutes, seconds)
    return array("I", (3600 * hour + 60 * minute + second for hour, minute, second in clock))


def _at_positions(rule: Rule, times: Sequence[int]) -> Sequence[int]:
    chosen = array("I", (times[at] for at in _positions(rule, len(times))))
    if not chosen:
        reason = f"each period has {len(times)} occurrences, and none at these positions"
        raise refused("bysetpos", ",".join(map(str, rule.bysetpos)), reason)
    return chosen


def _positions(rule: Rule, size: int) -> list[int]:
    """Return which of the ``size`` occurrences of a period BYSETPOS chooses, from 0, in order."""
    chosen = {at - 1 if at > 0 else size + at for at in rule.bysetpos}
    return sorted(at for at in chosen if 0 <= at < size)


def _seconds(wall: datetime) -> int:
    return wall.toordinal() * DAY + wall.hour * 3600 + wall.minute * 60 + wall.second


def _wall(seconds: int | None) -> datetime | None:
    if seconds is None:
        return None
    day, second = divmod(seconds, DAY)
    return datetime.fromordinal(day) + timedelta(seconds=second)
