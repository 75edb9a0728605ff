"""Wall times of one RRULE, counted from its DTSTART, from any point on.

dateutil says which days of a year a rule names (``rrule_days``). It cannot say when a rule fires
next: it walks from DTSTART at each question, and for a rule that never fires to the year 9999. So
the phase of INTERVAL, the times of day and BYSETPOS are arithmetic here, and no question takes more
than one pass over the years.

Wall times are integers: seconds since midnight before ordinal 0. Sets of days and of units (hours,
minutes or seconds of a day) are integers too, bit by bit.
"""

import math
from calendar import isleap
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice, product

from celery_dynbeat.triggers.rrule_bits import (
    Phase,
    bit_set,
    bits,
    cycle,
    months,
    spans,
    stripes,
)
from celery_dynbeat.triggers.rrule_days import day_filter, days_of, first_day
from celery_dynbeat.triggers.rrule_parts import Freq, Rule, refused
from celery_dynbeat.triggers.rrule_text import LAST_YEAR

_DAY = 86400
_UNIT_SECONDS = {Freq.HOURLY: 3600, Freq.MINUTELY: 60, Freq.SECONDLY: 1}
_MOST_TIMES = 3600
_WEEK = (1 << 7) - 1
# After so many periods the calendar repeats: 400 years.
_PERIODS_OF_ALL = {Freq.YEARLY: 400, Freq.MONTHLY: 4800, Freq.WEEKLY: 20871}
# With more, a day without any is rare, and each is looked at; so no list is longer.
_MOST_RESIDUES = 1024


class Walls:
    """One rule from its DTSTART on. Building it costs what one evaluation costs.

    Raises ``InvalidTriggerError`` when it names too many times, or when BYSETPOS chooses none.
    """

    def __init__(self, rule: Rule, dtstart: datetime) -> None:
        self._rule = rule
        self._start = _seconds(dtstart)
        self._unit = _UNIT_SECONDS.get(rule.freq, _DAY)
        self.days = days_of(day_filter(rule, dtstart))
        self._units = _units(rule)
        self._times = _times(rule, dtstart)
        self._by_period = bool(rule.bysetpos) and rule.freq < Freq.DAILY
        if rule.bysetpos and not self._by_period:
            self._times = _at_positions(rule, self._times)
        self._phase = self._phase_of_days()
        self._last = self._last_wall()

    def first_from(self, wall: datetime) -> datetime | None:
        """Return the first wall time of the rule at or after ``wall``."""
        return _wall(next(self._from(_seconds(wall)), None))

    def _from(self, wall: int) -> Iterator[int]:
        search = self._chosen_from if self._by_period else self._all_from
        wall = max(wall, self._start)
        for found in search(wall):
            if found > self._last:
                return
            if found >= wall:
                yield found

    def _last_wall(self) -> int:
        self._last = _DAY * first_day(LAST_YEAR + 1)
        until, count = self._rule.until, self._rule.count
        if until is not None and until.tzinfo is None:
            return min(self._last, _seconds(until))
        if count is not None:
            return max(islice(self._from(self._start), count), default=self._last)
        return self._last

    def _all_from(self, wall: int) -> Iterator[int]:
        day, second = divmod(wall, _DAY)
        for ordinal in self._days_from(day):
            units = self._units_on(ordinal)
            if ordinal == day:
                passed = second // self._unit
                units = units >> passed << passed
            for unit in bits(units):
                for time in self._times:
                    yield ordinal * _DAY + unit * self._unit + time

    def _days_from(self, day: int) -> Iterator[int]:
        year = datetime.fromordinal(day).year
        while year <= LAST_YEAR:
            first = first_day(year)
            days = self.days.of(year)
            if days:
                days &= self._phase(year)
            if first < day:
                days = days >> (day - first) << (day - first)
            for bit in bits(days):
                yield first + bit
            year += 1

    def _units_on(self, ordinal: int) -> int:
        """Return the hours, minutes or seconds of a day that the rule's interval falls on."""
        interval, a_day = self._rule.interval, _DAY // self._unit
        if interval == 1 or self._unit == _DAY:
            return self._units
        start_day, start_second = divmod(self._start, _DAY)
        first = (start_second // self._unit - (ordinal - start_day) * a_day) % interval
        return self._units & stripes(first, interval, a_day)

    def _phase_of_days(self) -> Phase:
        """Return, for a year, the days that the interval allows; bits past its end mean nothing."""
        rule, start = self._rule, datetime.fromordinal(self._start // _DAY)
        if rule.freq is Freq.YEARLY:
            return lambda year: 0 if (year - start.year) % rule.interval else -1
        if rule.freq is Freq.MONTHLY:
            origin = start.year * 12 + start.month - 1
            return lambda year: months(year, origin=origin, interval=rule.interval)
        origin = start.toordinal()
        if rule.freq is Freq.WEEKLY:
            return cycle(_week_start(origin, rule), 7 * rule.interval, list(range(7)))
        return cycle(origin, *self._days_with_units())

    def _days_with_units(self) -> tuple[int, list[int]]:
        """Return after how many days the interval falls on the same units, and on which days.

        A day ``n`` days after DTSTART's has the unit ``u`` when ``n * a_day + u`` is a whole
        number of intervals after DTSTART's unit: a congruence in ``n``.
        """
        interval, a_day = self._rule.interval, _DAY // self._unit
        start, common = self._start % _DAY // self._unit, math.gcd(interval, a_day)
        reached = self._units & stripes(start % common, common, a_day)
        if reached.bit_count() > _MOST_RESIDUES:
            return 1, [0]
        period = interval // common
        inverse = pow(a_day // common, -1, period)
        units = bits(reached)
        return period, sorted({(start - unit) // common * inverse % period for unit in units})

    def _chosen_from(self, wall: int) -> Iterator[int]:
        """Yield what BYSETPOS chooses; end after as many barren periods as the calendar has."""
        times, barren = self._times, 0
        for days in self._periods_from(wall // _DAY):
            chosen = _positions(self._rule, len(days) * len(times))
            for at in chosen:
                yield days[at // len(times)] * _DAY + times[at % len(times)]
            barren = 0 if chosen else barren + 1
            if barren > _PERIODS_OF_ALL[self._rule.freq]:
                return

    def _periods_from(self, day: int) -> Iterator[list[int]]:
        """Yield the days of each period that the interval falls on."""
        if self._rule.freq is Freq.WEEKLY:
            return self._weeks_from(day)
        return self._years_from(datetime.fromordinal(day).year)

    def _years_from(self, start: int) -> Iterator[list[int]]:
        whole = self._rule.freq is Freq.YEARLY
        for year in range(start, LAST_YEAR + 1):
            days, phase = self.days.of(year), self._phase(year)
            for span in (-1,) if whole else spans(leap=isleap(year)):
                if span & phase:
                    yield [first_day(year) + bit for bit in bits(days & span)]

    def _weeks_from(self, day: int) -> Iterator[list[int]]:
        """Yield the days of each week; the first begins with DTSTART, as dateutil's does."""
        start = self._start // _DAY
        origin = _week_start(start, self._rule)
        step = 7 * self._rule.interval
        week = origin + (day - origin) // step * step
        while week < first_day(LAST_YEAR + 1) - 7:
            year = datetime.fromordinal(week).year
            length = first_day(year + 1) - first_day(year)
            days = self.days.of(year) | self.days.of(year + 1) << length
            within = days >> (week - first_day(year)) & _WEEK
            yield [week + bit for bit in bits(within) if week + bit >= start]
            week += step


def _units(rule: Rule) -> int:
    """Return the hours, minutes or seconds of a day that the BY parts allow."""
    if rule.freq < Freq.HOURLY:
        return 1
    units = bit_set(rule.byhour or range(24))
    for freq, numbers in ((Freq.MINUTELY, rule.byminute), (Freq.SECONDLY, rule.bysecond)):
        if rule.freq >= freq:
            within = bit_set(numbers or range(60))
            units = sum(within << 60 * unit for unit in bits(units))
    return units


def _times(rule: Rule, dtstart: datetime) -> tuple[int, ...]:
    """Return the seconds within a day, or within an hour or minute, in order."""
    hours = (rule.byhour or (dtstart.hour,)) if rule.freq < Freq.HOURLY else (0,)
    minutes = (rule.byminute or (dtstart.minute,)) if rule.freq < Freq.MINUTELY else (0,)
    seconds = (rule.bysecond or (dtstart.second,)) if rule.freq < Freq.SECONDLY else (0,)
    number = len(hours) * len(minutes) * len(seconds)
    if number > _MOST_TIMES:
        reason = f"{number} times a day; repeat by FREQ=MINUTELY or SECONDLY instead"
        raise refused("bysecond", ",".join(map(str, seconds)), reason)
    return tuple(
        3600 * hour + 60 * minute + second
        for hour, minute, second in product(hours, minutes, seconds)
    )


def _at_positions(rule: Rule, times: tuple[int, ...]) -> tuple[int, ...]:
    chosen = tuple(times[at] for at in _positions(rule, len(times)))
    if not chosen:
        reason = f"each period has {len(times)} occurrences, and none at these positions"
        raise refused("bysetpos", ",".join(map(str, rule.bysetpos)), reason)
    return chosen


def _positions(rule: Rule, size: int) -> list[int]:
    """Return which of the ``size`` occurrences of a period BYSETPOS chooses, from 0, in order."""
    chosen = {at - 1 if at > 0 else size + at for at in rule.bysetpos}
    return sorted(at for at in chosen if 0 <= at < size)


def _week_start(ordinal: int, rule: Rule) -> int:
    """Return the day on which the week of ``ordinal`` begins; ordinal 1 was a Monday."""
    return ordinal - (ordinal - 1 - rule.wkst) % 7


def _seconds(wall: datetime) -> int:
    return wall.toordinal() * _DAY + wall.hour * 3600 + wall.minute * 60 + wall.second


def _wall(seconds: int | None) -> datetime | None:
    if seconds is None:
        return None
    day, second = divmod(seconds, _DAY)
    return datetime.fromordinal(day) + timedelta(seconds=second)
