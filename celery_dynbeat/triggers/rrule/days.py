"""The wall times of one RRULE from any point on, counted from its DTSTART.

dateutil finds the days of a year that the BY parts match. It does not search for the next
occurrence, because it starts from DTSTART each time, and searches to the year 9999 if a rule never
fires. A search here asks in turn for the next day on which INTERVAL falls and for the next day that
the BY parts match, until both are the same day. Neither depends on the distance to DTSTART.

Wall times are integers: seconds since midnight before ordinal 0. Sets of days of a year (bit 0 is 1
January) and of units (hours, minutes or seconds of a day) are the bits of an integer.
"""

import math
from array import array
from bisect import bisect_left
from calendar import isleap
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta
from functools import cache, lru_cache
from itertools import islice, product
from typing import NamedTuple

from dateutil.rrule import YEARLY, rrule, weekday

from celery_dynbeat.common.text import LAST_YEAR
from celery_dynbeat.triggers.base import PREPARATION_STEPS, SearchBudget
from celery_dynbeat.triggers.rrule.text import Freq, Numbers, RecurrenceRule, invalid_part

DAY_SECONDS = 86400
_UNIT_SECONDS = {Freq.HOURLY: 3600, Freq.MINUTELY: 60, Freq.SECONDLY: 1}
# The last 28 years of datetime. None of them is a century year, so they contain every kind of year.
_SAMPLES = range(9972, 10000)
# dateutil stops after the first year, because the next year lies past 9999.
_ONE_YEAR_ONLY = 10_000
# If there is no condition, dateutil uses the day of dtstart.
_EVERY_DAY = tuple((day, 0) for day in range(7))
# The number of periods after which the calendar repeats: 400 years.
_CALENDAR_PERIODS = {Freq.YEARLY: 400, Freq.MONTHLY: 4800, Freq.WEEKLY: 20871}
# With more units, few days have none, so every day is searched. No list is longer than this.
_MAX_RESIDUES = 1024
# One step lists this number of days of a period, or sets this number of units of a day.
_DAYS_PER_STEP, _UNITS_PER_STEP = 16, 8192
_WORD = (1 << 64) - 1


@cache
def _first_day(year: int) -> int:
    """Return the ordinal of 1 January."""
    return date(year, 1, 1).toordinal()


_AFTER_LAST = _first_day(LAST_YEAR + 1)
_END = DAY_SECONDS * _AFTER_LAST


class DayFilter(NamedTuple):
    """The parts of a rule that select days of a year. A day must match all of them."""

    wkst: int
    bymonth: Numbers
    byweekno: Numbers
    byyearday: Numbers
    bymonthday: Numbers
    byday: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, rule: RecurrenceRule, dtstart: datetime | None) -> "DayFilter":
        """Return the filter of a rule. As in the RFC, ``dtstart`` provides the missing parts."""
        bymonth, bymonthday, byday = rule.bymonth, rule.bymonthday, rule.byday
        if dtstart and not (rule.byweekno or rule.byyearday or bymonthday or byday):
            if rule.freq is Freq.YEARLY:
                bymonth, bymonthday = bymonth or (dtstart.month,), (dtstart.day,)
            elif rule.freq is Freq.MONTHLY:
                bymonthday = (dtstart.day,)
            elif rule.freq is Freq.WEEKLY:
                byday = ((dtstart.weekday(), 0),)
        if rule.freq is Freq.MONTHLY:
            # A yearly rule with all months has the same days.
            bymonth = bymonth or tuple(range(1, 13))
        return cls(rule.wkst, bymonth, rule.byweekno, rule.byyearday, bymonthday, byday)


class MatchingDays(dict[int, int]):
    """The days that match a filter, by sample year.

    They depend only on the kind of the year: leap or not, the weekday of 1 January, and whether the
    year before was leap (for week numbers). dateutil searches each of 28 sample years at most once.
    """

    def __init__(self, day_filter: DayFilter) -> None:
        super().__init__()
        self._filter = day_filter

    def __missing__(self, sample: int) -> int:
        """Search plain and numbered weekdays separately.

        For both at once (``BYDAY=MO,2TU``) dateutil finds only days that match both.
        """
        days, chosen = 0, self._filter
        for numbered in (False, True):
            byday = [(day, n) for day, n in chosen.byday or _EVERY_DAY if bool(n) is numbered]
            if not byday:
                continue
            matching = rrule(
                YEARLY,
                dtstart=datetime(sample, 1, 1),  # noqa: DTZ001 - days have no zone
                interval=_ONE_YEAR_ONLY,
                wkst=chosen.wkst,
                bymonth=chosen.bymonth or None,
                byweekno=chosen.byweekno or None,
                byyearday=chosen.byyearday or None,
                bymonthday=chosen.bymonthday or None,
                byweekday=[weekday(day, n or None) for day, n in byday],
                byhour=0,
                byminute=0,
                bysecond=0,
            )
            days |= _bit_set(day.timetuple().tm_yday - 1 for day in matching)
        self[sample] = days
        return days

    def any(self) -> bool:
        """Whether some year has a matching day."""
        return any(self[sample] for sample in _SAMPLES)

    def first_from(self, day: int, budget: SearchBudget) -> int:
        """Return the first matching day from ``day`` on, or one after the last year."""
        first = year = datetime.fromordinal(day).year
        days = self[_sample_of(year)] >> day - _first_day(year)
        while not days:
            year += 1
            if year > LAST_YEAR:
                budget.spend(year - first)
                return _AFTER_LAST
            day, days = _first_day(year), self[_sample_of(year)]
        budget.spend(year - first)
        return day + _lowest(days)

    def between(self, begin: int, end: int) -> int:
        """Return the matching days from ``begin`` to before ``end`` as bits from ``begin`` on."""
        year = datetime.fromordinal(begin).year
        days, following = self[_sample_of(year)] >> begin - _first_day(year), _first_day(year + 1)
        if following < end:
            days |= self[_sample_of(year + 1)] << following - begin
        return days & (1 << end - begin) - 1


@lru_cache(maxsize=1024)
def matching_days(day_filter: DayFilter) -> MatchingDays:
    """Return the days that match. Equal filters share one object."""
    return MatchingDays(day_filter)


@cache
def _sample_of(year: int) -> int:
    """Return the sample year that has the same calendar."""
    return next(sample for sample in _SAMPLES if _kind(sample) == _kind(year))


@cache
def _kind(year: int) -> tuple[bool, bool, int]:
    return isleap(year), isleap(year - 1), date(year, 1, 1).weekday()


class RuleWallTimes:
    """Finds the wall times of one rule from its DTSTART on.

    If arithmetic cannot tell where COUNT ends, each occurrence is visited once. Each year, period
    and day that is looked at takes one step of a budget. Raises ``BudgetExceededError`` when none
    is left, and ``InvalidTriggerError`` when BYSETPOS selects nothing.
    """

    def __init__(self, rule: RecurrenceRule, dtstart: datetime, budget: SearchBudget) -> None:
        self._rule = rule
        self._start = _to_seconds(dtstart)
        self._unit = _UNIT_SECONDS.get(rule.freq, DAY_SECONDS)
        self._days = matching_days(DayFilter.of(rule, dtstart))
        # A day with seconds costs more, because its set of seconds takes 11 KB.
        self._day_steps = 1 + DAY_SECONDS // self._unit // _UNITS_PER_STEP
        self._times = _listed_times(rule, dtstart)
        self._by_period = bool(rule.bysetpos) and rule.freq < Freq.DAILY
        if rule.bysetpos and not self._by_period:
            self._times = _at_positions(rule, self._times)
        self._period, self._residues = _days_with_units(rule, self._start)
        self._last = _END
        #: The steps to count the rule through, also if they were taken from the cache.
        self.counting_steps = 0
        self._last = self._last_wall(dtstart)
        budget.spend(self.counting_steps)

    def first_from(self, wall: datetime, budget: SearchBudget) -> datetime | None:
        """Return the first wall time of the rule at or after ``wall``."""
        seconds = next(self.walls_from(max(_to_seconds(wall), self._start), budget), None)
        if seconds is None:
            return None
        day, second = divmod(seconds, DAY_SECONDS)
        return datetime.fromordinal(day) + timedelta(seconds=second)

    def walls_from(self, wall: int, budget: SearchBudget) -> Iterator[int]:
        """Yield the wall times of the rule at or after ``wall``, which is not before DTSTART."""
        search = self._chosen_from if self._by_period else self._all_from
        for candidate in search(wall, budget):
            if candidate > self._last:
                return
            if candidate >= wall:
                yield candidate

    def _last_wall(self, dtstart: datetime) -> int:
        rule = self._rule
        if rule.until is not None and rule.until.tzinfo is None:
            return min(_END, _to_seconds(rule.until))
        if rule.count is None:
            return _END
        if rule.is_plain and rule.freq >= Freq.DAILY:
            return min(_END, self._start + (rule.count - 1) * rule.interval * self._unit)
        last, self.counting_steps = counted(rule, dtstart)
        return last

    def _all_from(self, wall: int, budget: SearchBudget) -> Iterator[int]:
        today, second = divmod(wall, DAY_SECONDS)
        day = today
        while (day := self._next_day(day, budget)) < _AFTER_LAST:
            units = self._units_on(day)
            if day == today:
                passed = second // self._unit
                units = units >> passed << passed
            for unit in _bits(units):
                for time in self._times:
                    yield day * DAY_SECONDS + unit * self._unit + time
            day += 1

    def _next_day(self, day: int, budget: SearchBudget) -> int:
        """Return the first day from ``day`` on that has the INTERVAL and the BY parts."""
        while True:
            allowed = self._allowed_from(day)
            if allowed >= _AFTER_LAST:
                return _AFTER_LAST
            day = self._days.first_from(allowed, budget)
            budget.spend(self._day_steps)
            if day == allowed or self._rule.interval == 1:
                return day

    def _allowed_from(self, day: int) -> int:
        """Return the first day from ``day`` on on which INTERVAL falls. It can be far too late."""
        rule, start_day = self._rule, self._start // DAY_SECONDS
        if rule.freq <= Freq.MONTHLY:
            at, began = datetime.fromordinal(day), datetime.fromordinal(start_day)
            number = 1 if rule.freq is Freq.YEARLY else 12
            ahead = (began.year - at.year) * number
            ahead = (ahead + (began.month - at.month if number > 1 else 0)) % rule.interval
            return _first_of_period(at, number, ahead) if ahead else day
        if rule.freq is Freq.WEEKLY:
            week = _week_start(day, rule)
            ahead = (_week_start(start_day, rule) - week) // 7 % rule.interval
            return max(day, week + 7 * ahead)
        if self._residues is None:
            begin, step = self._start // self._unit * self._unit, rule.interval * self._unit
            return day + (begin - day * DAY_SECONDS) % step // DAY_SECONDS
        shift = (day - start_day) % self._period
        at_residue = bisect_left(self._residues, shift)
        if at_residue < len(self._residues):
            return day + self._residues[at_residue] - shift
        return day + self._residues[0] + self._period - shift if self._residues else _AFTER_LAST

    def _units_on(self, day: int) -> int:
        """Return the hours, minutes or seconds of a day on which INTERVAL falls."""
        interval, a_day = self._rule.interval, DAY_SECONDS // self._unit
        units = _allowed_units(self._rule)
        if interval == 1 or self._unit == DAY_SECONDS:
            return units
        start_day, start_second = divmod(self._start, DAY_SECONDS)
        first = (start_second // self._unit - (day - start_day) * a_day) % interval
        return units & _stripes(first, interval, a_day)

    def _chosen_from(self, wall: int, budget: SearchBudget) -> Iterator[int]:
        """Yield what BYSETPOS selects. Stop after a whole calendar of empty periods."""
        times, empty, day = self._times, 0, wall // DAY_SECONDS
        while empty <= _CALENDAR_PERIODS[self._rule.freq]:
            allowed = self._allowed_from(day)
            if allowed >= _AFTER_LAST:
                return
            begin, day = self._period_around(allowed)
            days = _listed(self._days.between(begin, day))
            budget.spend(1 + len(days) // _DAYS_PER_STEP)
            chosen = _selected(self._rule, len(days) * len(times))
            for at in chosen:
                yield (begin + days[at // len(times)]) * DAY_SECONDS + times[at % len(times)]
            empty = 0 if chosen else empty + 1

    def _period_around(self, day: int) -> tuple[int, int]:
        """Return the first day of the year, month or week of ``day``, and the day after its end."""
        if self._rule.freq is Freq.WEEKLY:
            week = _week_start(day, self._rule)
            # As in dateutil, the first week begins with DTSTART.
            return max(week, self._start // DAY_SECONDS), week + 7
        at, number = datetime.fromordinal(day), 1 if self._rule.freq is Freq.YEARLY else 12
        return _first_of_period(at, number, 0), _first_of_period(at, number, 1)


@lru_cache(maxsize=4096)
def counted(rule: RecurrenceRule, dtstart: datetime) -> tuple[int, int]:
    """Return the last wall time of a rule with COUNT, in seconds, and the steps to count it.

    It is cached, because beat may need thousands of rules each second. Raises
    ``BudgetExceededError`` after PREPARATION_STEPS.
    """
    budget = SearchBudget(PREPARATION_STEPS)
    walls = RuleWallTimes(rule.without_count(), dtstart, budget)
    occurrences = walls.walls_from(_to_seconds(dtstart), budget)
    return max(islice(occurrences, rule.count), default=_END), budget.spent


def _first_of_period(at: datetime, number: int, ahead: int) -> int:
    """Return the first day ``ahead`` periods after the one of ``at``; a year has ``number``."""
    year, period = divmod(at.year * number + (at.month - 1) * (number > 1) + ahead, number)
    return date(year, period + 1, 1).toordinal() if year <= LAST_YEAR else _AFTER_LAST


def _week_start(day: int, rule: RecurrenceRule) -> int:
    """Return the first day of the week of ``day``. Ordinal 1 was a Monday."""
    return day - (day - 1 - rule.wkst) % 7


def _days_with_units(rule: RecurrenceRule, start: int) -> tuple[int, Sequence[int] | None]:
    """Return the days after which INTERVAL repeats its units, and the days that have any.

    The day ``n`` days after DTSTART has the unit ``u`` when ``n * a_day + u`` is a whole number of
    intervals after the unit of DTSTART: a congruence in ``n``. None means that the days on which
    any unit falls are searched, because most of them have a unit that the BY parts allow.
    """
    if rule.freq < Freq.HOURLY:
        return 1, None
    unit = _UNIT_SECONDS[rule.freq]
    interval, a_day = rule.interval, DAY_SECONDS // unit
    began, common = start % DAY_SECONDS // unit, math.gcd(interval, a_day)
    reached = _allowed_units(rule) & _stripes(began % common, common, a_day)
    if reached.bit_count() > _MAX_RESIDUES:
        return 1, None
    period = interval // common
    inverse = pow(a_day // common, -1, period)
    days = {(began - at) // common * inverse % period for at in _bits(reached)}
    return period, array("I", sorted(days))


def _allowed_units(rule: RecurrenceRule) -> int:
    """Return the hours, minutes or seconds of a day that the BY parts allow."""
    return 1 if rule.freq < Freq.HOURLY else _combined_units(rule.freq, *rule.clock)


# The cache is small, because the seconds of a day take 11 KB.
@lru_cache(maxsize=256)
def _combined_units(freq: Freq, byhour: Numbers, byminute: Numbers, bysecond: Numbers) -> int:
    units = _bit_set(byhour or range(24))
    for shorter, numbers in ((Freq.MINUTELY, byminute), (Freq.SECONDLY, bysecond)):
        if freq >= shorter:
            within = _bit_set(numbers or range(60))
            units = sum(within << 60 * unit for unit in _bits(units))
    return units


def _listed_times(rule: RecurrenceRule, dtstart: datetime) -> Sequence[int]:
    """Return the listed times as seconds of the day, hour or minute, in order."""
    hours = (rule.byhour or (dtstart.hour,)) if rule.freq < Freq.HOURLY else (0,)
    minutes = (rule.byminute or (dtstart.minute,)) if rule.freq < Freq.MINUTELY else (0,)
    seconds = (rule.bysecond or (dtstart.second,)) if rule.freq < Freq.SECONDLY else (0,)
    clock = product(hours, minutes, seconds)
    return array("I", (3600 * hour + 60 * minute + second for hour, minute, second in clock))


def _at_positions(rule: RecurrenceRule, times: Sequence[int]) -> Sequence[int]:
    chosen = array("I", (times[at] for at in _selected(rule, len(times))))
    if not chosen:
        reason = f"each period has {len(times)} occurrences, and none at these positions"
        raise invalid_part("bysetpos", ",".join(map(str, rule.bysetpos)), reason)
    return chosen


def _selected(rule: RecurrenceRule, size: int) -> list[int]:
    """Return the indices, in order, that BYSETPOS selects from ``size`` occurrences."""
    chosen = {at - 1 if at > 0 else size + at for at in rule.bysetpos}
    return sorted(at for at in chosen if 0 <= at < size)


def _to_seconds(wall: datetime) -> int:
    return wall.toordinal() * DAY_SECONDS + wall.hour * 3600 + wall.minute * 60 + wall.second


def _stripes(first: int, interval: int, size: int) -> int:
    """Return the set of ``first``, ``first + interval`` and so on below ``size``."""
    if first >= size:
        return 0
    # Doubling sets 1, 2, 4, 8 ... bits.
    pattern, width = 1, interval
    while width < size:
        pattern |= pattern << width
        width *= 2
    return (pattern << first) & ((1 << size) - 1)


def _bit_set(numbers: Iterable[int]) -> int:
    """Return the set of ``numbers``."""
    total = 0
    for number in numbers:
        total |= 1 << number
    return total


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _bits(number: int) -> Iterator[int]:
    """Yield the numbers of a set in order.

    It works word by word: shifting the 86,400 bits of the seconds of a day is slow.
    """
    passed = 0
    while number:
        skipped = _lowest(number)
        passed, number = passed + skipped, number >> skipped
        word = number & _WORD
        while word:
            yield passed + _lowest(word)
            word &= word - 1
        passed, number = passed + _WORD.bit_length(), number >> _WORD.bit_length()


# Many years and rules have the same days, and a year of days is slow to list.
@lru_cache(maxsize=256)
def _listed(days: int) -> Sequence[int]:
    return array("H", _bits(days))
