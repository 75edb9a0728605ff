"""The days of a year that a rule matches, found by dateutil one year at a time.

A set of days is an integer, where bit 0 stands for 1 January. If nothing matches, dateutil searches
up to the year 9999, so it is never asked about more than one year. The matching days depend only on
the kind of the year: leap or not, the weekday of 1 January, and whether the year before was leap
(for week numbers). dateutil therefore searches at most 28 years for a filter.
"""

from calendar import isleap
from dataclasses import dataclass
from datetime import date, datetime
from functools import cache, lru_cache

from dateutil.rrule import YEARLY, rrule, weekday

from celery_dynbeat.triggers.rrule.rule import Freq, RecurrenceRule

# The last 28 years of datetime. None of them is a century year, so they contain every kind of year.
_SAMPLES = range(9972, 10000)
# dateutil stops after the first year, because the next year lies past 9999.
_ONE_YEAR_ONLY = 10_000
# If there is no condition, dateutil uses the day of dtstart.
_EVERY_DAY = tuple((day, 0) for day in range(7))


@dataclass(frozen=True, slots=True)
class DayFilter:
    """The parts of a rule that select days of a year. A day must match all of them."""

    bymonth: tuple[int, ...] = ()
    byweekno: tuple[int, ...] = ()
    byyearday: tuple[int, ...] = ()
    bymonthday: tuple[int, ...] = ()
    byday: tuple[tuple[int, int], ...] = ()
    wkst: int = 0


class MatchingDays(dict[int, int]):
    """The days that match a filter, by sample year. dateutil searches a year at its first use."""

    def __init__(self, day_filter: DayFilter) -> None:
        super().__init__()
        self._filter = day_filter

    def __missing__(self, sample: int) -> int:
        self[sample] = days = _search(self._filter, sample)
        return days

    def of(self, year: int) -> int:
        """Return the matching days of a year."""
        return self[sample_of(year)]

    def any(self) -> bool:
        """Whether some year has a matching day."""
        return any(self[sample] for sample in _SAMPLES)


def day_filter(rule: RecurrenceRule, dtstart: datetime | None) -> DayFilter:
    """Return the filter of a rule. As in the RFC, ``dtstart`` provides the missing parts.

    A monthly rule becomes a yearly rule with all months: dateutil finds the same days.
    """
    bymonth, bymonthday, byday = rule.bymonth, rule.bymonthday, rule.byday
    if dtstart and not (rule.byweekno or rule.byyearday or bymonthday or byday):
        if rule.freq is Freq.YEARLY:
            bymonth, bymonthday = bymonth or (dtstart.month,), (dtstart.day,)
        elif rule.freq is Freq.MONTHLY:
            bymonthday = (dtstart.day,)
        elif rule.freq is Freq.WEEKLY:
            byday = ((dtstart.weekday(), 0),)
    if rule.freq is Freq.MONTHLY:
        bymonth = bymonth or tuple(range(1, 13))
    return DayFilter(bymonth, rule.byweekno, rule.byyearday, bymonthday, byday, rule.wkst)


@lru_cache(maxsize=1024)
def days_of(day_filter: DayFilter) -> MatchingDays:
    """Return the days that match. Equal filters share one object."""
    return MatchingDays(day_filter)


@cache
def sample_of(year: int) -> int:
    """Return the sample year that has the same calendar."""
    return _samples()[_kind(year)]


@cache
def _samples() -> dict[tuple[bool, bool, int], int]:
    return {_kind(sample): sample for sample in _SAMPLES}


@cache
def first_day(year: int) -> int:
    """Return the ordinal of 1 January."""
    return date(year, 1, 1).toordinal()


def _kind(year: int) -> tuple[bool, bool, int]:
    return isleap(year), isleap(year - 1), date(year, 1, 1).weekday()


def _search(chosen: DayFilter, year: int) -> int:
    """Return the matching days of a year, searched separately for plain and numbered weekdays.

    For both at once (``BYDAY=MO,2TU``) dateutil finds only days that match both.
    """
    plain = tuple(pair for pair in chosen.byday if not pair[1])
    numbered = tuple(pair for pair in chosen.byday if pair[1])
    days = 0
    for byday in [group for group in (plain, numbered) if group] or [()]:
        days |= _search_weekdays(chosen, byday, year)
    return days


def _search_weekdays(chosen: DayFilter, byday: tuple[tuple[int, int], ...], year: int) -> int:
    matching = rrule(
        YEARLY,
        dtstart=datetime(year, 1, 1),  # noqa: DTZ001 - days have no zone
        interval=_ONE_YEAR_ONLY,
        wkst=chosen.wkst,
        bymonth=chosen.bymonth or None,
        byweekno=chosen.byweekno or None,
        byyearday=chosen.byyearday or None,
        bymonthday=chosen.bymonthday or None,
        byweekday=[weekday(day, number or None) for day, number in byday or _EVERY_DAY],
        byhour=0,
        byminute=0,
        bysecond=0,
    )
    return sum(1 << day.timetuple().tm_yday - 1 for day in matching)
