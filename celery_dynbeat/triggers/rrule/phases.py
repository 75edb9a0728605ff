"""Which days INTERVAL falls on, year by year from any year on; years without any are passed over.

A rule that repeats by the minute may have its next occurrence a thousand years ahead, so what lies
between is never walked: long intervals are stepped by themselves, and of short ones each year's
days are a shift of one pattern.
"""

import math
from array import array
from bisect import bisect_left
from calendar import isleap
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from celery_dynbeat.triggers.rrule.bits import bit_set, bits, spans, stripes
from celery_dynbeat.triggers.rrule.days import first_day
from celery_dynbeat.triggers.rrule.parts import Freq, Rule
from celery_dynbeat.triggers.rrule.text import LAST_YEAR

DAY = 86400
UNIT_SECONDS = {Freq.HOURLY: 3600, Freq.MINUTELY: 60, Freq.SECONDLY: 1}
#: From a year to the years from it on and their days; bits past the end of a year mean nothing.
Phases = Callable[[int], Iterator[tuple[int, int]]]
_Phase = Callable[[int], int]
_YEAR = 366
_MONTHS = 12
_WEEK = (1 << 7) - 1
# A longer cycle is looked up in its list instead of being laid out in bits.
_LONGEST_TILE = 4096
# With more, a day without any is rare, and each is looked at; so no list is longer.
_MOST_RESIDUES = 1024


def phases(rule: Rule, start: int, units: int) -> Phases:
    """Return the days that the interval allows; ``start`` is DTSTART in seconds.

    ``units`` are the hours, minutes or seconds of a day that the rule's BY parts allow.
    """
    began = datetime.fromordinal(start // DAY)
    if rule.freq is Freq.YEARLY:
        return lambda year: _years(year, began.year, rule.interval)
    if rule.freq is Freq.MONTHLY:
        origin = began.year * _MONTHS + began.month - 1
        if rule.interval >= _MONTHS:
            return lambda year: _some_months(year, origin, rule.interval)
        return _each_year(lambda year: _months(year, origin=origin, interval=rule.interval))
    if rule.freq is Freq.WEEKLY:
        begin, step, width = week_start(start // DAY, rule) * DAY, 7 * DAY * rule.interval, _WEEK
    else:
        unit = UNIT_SECONDS.get(rule.freq, DAY)
        begin, step, width = start // unit * unit, unit * rule.interval, 1
    if step >= _YEAR * DAY:
        return lambda year: _leaps(year, begin, step, width)
    if rule.freq is Freq.WEEKLY:
        return _each_year(_cycle(begin // DAY, 7 * rule.interval, range(7)))
    return _each_year(_cycle(start // DAY, *_days_with_units(rule, start, units)))


def week_start(ordinal: int, rule: Rule) -> int:
    """Return the day on which the week of ``ordinal`` begins; ordinal 1 was a Monday."""
    return ordinal - (ordinal - 1 - rule.wkst) % 7


def _each_year(phase: _Phase) -> Phases:
    return lambda start: ((year, phase(year)) for year in range(start, LAST_YEAR + 1))


def _years(year: int, origin: int, interval: int) -> Iterator[tuple[int, int]]:
    for each in range(year + (origin - year) % interval, LAST_YEAR + 1, interval):
        yield each, -1


def _some_months(year: int, origin: int, interval: int) -> Iterator[tuple[int, int]]:
    first = year * _MONTHS
    first += (origin - first) % interval
    for number in range(first, (LAST_YEAR + 1) * _MONTHS, interval):
        each, month = divmod(number, _MONTHS)
        yield each, spans(leap=isleap(each))[month]


def _leaps(year: int, begin: int, step: int, width: int) -> Iterator[tuple[int, int]]:
    """Yield each step on its own; a week that a year ends in is yielded with both."""
    first = first_day(year) * DAY
    first += (begin - first) % step
    # The week before may reach into the year.
    for second in range(first - step, (first_day(LAST_YEAR + 1) - 7) * DAY, step):
        day = second // DAY
        if day < 1:
            continue
        each = datetime.fromordinal(day).year
        passed, length = day - first_day(each), first_day(each + 1) - first_day(each)
        if each >= year:
            yield each, width << passed
        if each + 1 >= year and (width << passed) >> length:
            yield each + 1, (width << passed) >> length


def _days_with_units(rule: Rule, start: int, units: int) -> tuple[int, Sequence[int]]:
    """Return after how many days the interval falls on the same units, and on which days.

    A day ``n`` days after DTSTART's has the unit ``u`` when ``n * a_day + u`` is a whole number
    of intervals after DTSTART's unit: a congruence in ``n``.
    """
    unit = UNIT_SECONDS.get(rule.freq, DAY)
    interval, a_day = rule.interval, DAY // unit
    began, common = start % DAY // unit, math.gcd(interval, a_day)
    reached = units & stripes(began % common, common, a_day)
    if reached.bit_count() > _MOST_RESIDUES:
        return 1, (0,)
    period = interval // common
    inverse = pow(a_day // common, -1, period)
    days = {(began - each) // common * inverse % period for each in bits(reached)}
    return period, array("I", sorted(days))


def _cycle(origin: int, period: int, residues: Sequence[int]) -> _Phase:
    """Return the days that lie a residue after ``origin`` and then every ``period`` days."""
    if period == 1:
        return lambda _year: -1 if residues else 0
    if period <= _LONGEST_TILE:
        tile = bit_set(residues)
        for copies in range(1, (period + _YEAR) // period + 1):
            tile |= bit_set(residues) << copies * period
        return lambda year: tile >> (first_day(year) - origin) % period

    def rare(year: int) -> int:
        shift = (first_day(year) - origin) % period
        near = residues[bisect_left(residues, shift) : bisect_left(residues, shift + _YEAR)]
        wrapped = residues[: bisect_left(residues, shift + _YEAR - period)]
        return bit_set([*near, *(residue + period for residue in wrapped)]) >> shift

    return rare


def _months(year: int, *, origin: int, interval: int) -> int:
    """Return the days of the months that the interval falls on; months count from year 0."""
    if interval == 1:
        return -1
    numbered = enumerate(spans(leap=isleap(year)), start=year * 12)
    return sum(span for month, span in numbered if (month - origin) % interval == 0)
