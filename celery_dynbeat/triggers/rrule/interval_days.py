"""The days on which the INTERVAL of a rule falls, year by year from any year on.

The next occurrence of a rule that repeats by the minute may be a thousand years ahead, so the time
between is not searched. Long intervals are computed one after another. For short intervals, the
days of each year are a shift of one bit pattern.
"""

import math
from array import array
from bisect import bisect_left
from calendar import isleap
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from celery_dynbeat.common.text import LAST_YEAR
from celery_dynbeat.triggers.rrule.bitsets import bit_set, bits, month_days, stripes
from celery_dynbeat.triggers.rrule.matching_days import first_day
from celery_dynbeat.triggers.rrule.rule import Freq, RecurrenceRule

DAY_SECONDS = 86400
UNIT_SECONDS = {Freq.HOURLY: 3600, Freq.MINUTELY: 60, Freq.SECONDLY: 1}
#: Takes a year and yields each year from it on with its days. Years without days may be left out.
#: Bits past the end of a year are ignored.
IntervalDays = Callable[[int], Iterator[tuple[int, int]]]
_DaysOfYear = Callable[[int], int]
_YEAR = 366
_MONTHS = 12
_WEEK = (1 << 7) - 1
# A longer cycle is not stored as bits. Its days are found in a list.
_MAX_PATTERN = 4096
# With more units, few days have none, so every day is searched. No list is longer than this.
_MAX_RESIDUES = 1024


def interval_days(rule: RecurrenceRule, start: int, units: int) -> IntervalDays:
    """Return the days on which the interval falls. ``start`` is DTSTART in seconds.

    ``units`` are the hours, minutes or seconds of a day that the rule's BY parts allow.
    """
    began = datetime.fromordinal(start // DAY_SECONDS)
    if rule.freq is Freq.YEARLY:
        return lambda year: _every_years(year, began.year, rule.interval)
    if rule.freq is Freq.MONTHLY:
        origin = began.year * _MONTHS + began.month - 1
        if rule.interval >= _MONTHS:
            return lambda year: _long_month_steps(year, origin, rule.interval)
        return _each_year(lambda year: _months(year, origin=origin, interval=rule.interval))
    if rule.freq is Freq.WEEKLY:
        begin, step, width = (
            week_start(start // DAY_SECONDS, rule) * DAY_SECONDS,
            7 * DAY_SECONDS * rule.interval,
            _WEEK,
        )
    else:
        unit = UNIT_SECONDS.get(rule.freq, DAY_SECONDS)
        begin, step, width = start // unit * unit, unit * rule.interval, 1
    if step >= _YEAR * DAY_SECONDS:
        return lambda year: _long_steps(year, begin, step, width)
    if rule.freq is Freq.WEEKLY:
        return _each_year(_cycle(begin // DAY_SECONDS, 7 * rule.interval, range(7)))
    return _each_year(_cycle(start // DAY_SECONDS, *_days_with_units(rule, start, units)))


def week_start(ordinal: int, rule: RecurrenceRule) -> int:
    """Return the first day of the week of ``ordinal``. Ordinal 1 was a Monday."""
    return ordinal - (ordinal - 1 - rule.wkst) % 7


def _each_year(days_of: _DaysOfYear) -> IntervalDays:
    return lambda start: ((year, days_of(year)) for year in range(start, LAST_YEAR + 1))


def _every_years(year: int, origin: int, interval: int) -> Iterator[tuple[int, int]]:
    for later in range(year + (origin - year) % interval, LAST_YEAR + 1, interval):
        yield later, -1


def _long_month_steps(year: int, origin: int, interval: int) -> Iterator[tuple[int, int]]:
    first = year * _MONTHS
    first += (origin - first) % interval
    for number in range(first, (LAST_YEAR + 1) * _MONTHS, interval):
        later, month = divmod(number, _MONTHS)
        yield later, month_days(leap=isleap(later))[month]


def _long_steps(year: int, begin: int, step: int, width: int) -> Iterator[tuple[int, int]]:
    """Yield each step. A week across the end of a year is yielded with both years."""
    first = first_day(year) * DAY_SECONDS
    first += (begin - first) % step
    # The week before may extend into the year.
    for second in range(first - step, (first_day(LAST_YEAR + 1) - 7) * DAY_SECONDS, step):
        day = second // DAY_SECONDS
        if day < 1:
            continue
        begins = datetime.fromordinal(day).year
        passed, length = day - first_day(begins), first_day(begins + 1) - first_day(begins)
        if begins >= year:
            yield begins, width << passed
        if begins + 1 >= year and (width << passed) >> length:
            yield begins + 1, (width << passed) >> length


def _days_with_units(rule: RecurrenceRule, start: int, units: int) -> tuple[int, Sequence[int]]:
    """Return the days after which the interval repeats its units, and the days that have any.

    The day ``n`` days after DTSTART has the unit ``u`` when ``n * a_day + u`` is a whole number of
    intervals after the unit of DTSTART: a congruence in ``n``.
    """
    unit = UNIT_SECONDS.get(rule.freq, DAY_SECONDS)
    interval, a_day = rule.interval, DAY_SECONDS // unit
    began, common = start % DAY_SECONDS // unit, math.gcd(interval, a_day)
    reached = units & stripes(began % common, common, a_day)
    if reached.bit_count() > _MAX_RESIDUES:
        return 1, (0,)
    period = interval // common
    inverse = pow(a_day // common, -1, period)
    days = {(began - unit) // common * inverse % period for unit in bits(reached)}
    return period, array("I", sorted(days))


def _cycle(origin: int, period: int, residues: Sequence[int]) -> _DaysOfYear:
    """Return the days that lie a residue after ``origin``, and every ``period`` days after that."""
    if period == 1:
        return lambda _year: -1 if residues else 0
    if period <= _MAX_PATTERN:
        pattern = bit_set(residues)
        for copies in range(1, (period + _YEAR) // period + 1):
            pattern |= bit_set(residues) << copies * period
        return lambda year: pattern >> (first_day(year) - origin) % period

    def search(year: int) -> int:
        shift = (first_day(year) - origin) % period
        near = residues[bisect_left(residues, shift) : bisect_left(residues, shift + _YEAR)]
        wrapped = residues[: bisect_left(residues, shift + _YEAR - period)]
        return bit_set([*near, *(residue + period for residue in wrapped)]) >> shift

    return search


def _months(year: int, *, origin: int, interval: int) -> int:
    """Return the days of the months on which the interval falls. Months count from year 0."""
    if interval == 1:
        return -1
    numbered = enumerate(month_days(leap=isleap(year)), start=year * 12)
    return sum(days for month, days in numbered if (month - origin) % interval == 0)
