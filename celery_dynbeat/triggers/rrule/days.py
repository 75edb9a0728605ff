"""Which days of a year a rule names: asked of dateutil, one year at a time.

A set of days is an integer: bit 0 stands for 1 January. dateutil walks on until it finds something,
to the year 9999 if need be, so it is never asked about more than a single year; and because a
year's days depend on nothing but its kind (leap or not, the weekday of 1 January, and whether the
year before was leap, for week numbers), never about more than 28 of them.
"""

from calendar import isleap
from dataclasses import dataclass
from datetime import date, datetime
from functools import cache, lru_cache

from dateutil.rrule import YEARLY, rrule, weekday

from celery_dynbeat.triggers.rrule.parts import Freq, Rule

# The last 28 years that datetime knows. There is no century among them, so every kind of year is.
_SAMPLES = range(9972, 10000)
# dateutil stops after the first year, because the next would lie past 9999.
_ONE_YEAR_ONLY = 10_000
# Without any condition dateutil would take the day of dtstart.
_EVERY_DAY = tuple((day, 0) for day in range(7))


@dataclass(frozen=True, slots=True)
class DayFilter:
    """The parts of a rule that choose among the days of a year; all of them must agree."""

    bymonth: tuple[int, ...] = ()
    byweekno: tuple[int, ...] = ()
    byyearday: tuple[int, ...] = ()
    bymonthday: tuple[int, ...] = ()
    byday: tuple[tuple[int, int], ...] = ()
    wkst: int = 0


class Days(dict[int, int]):
    """The days that match a filter, by sample year; looked for when they are first asked for."""

    def __init__(self, day_filter: DayFilter) -> None:
        super().__init__()
        self._filter = day_filter

    def __missing__(self, sample: int) -> int:
        self[sample] = days = _matching(self._filter, sample)
        return days

    def of(self, year: int) -> int:
        """Return the matching days of a year."""
        return self[sample_of(year)]

    def any(self) -> bool:
        """Whether some year has a matching day."""
        return any(self[sample] for sample in _SAMPLES)


def day_filter(rule: Rule, dtstart: datetime | None) -> DayFilter:
    """Return the filter of a rule; what it leaves open is taken from ``dtstart``, as the RFC says.

    A monthly rule is read as a yearly one with all its months: dateutil gives the same days.
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
def days_of(day_filter: DayFilter) -> Days:
    """Return the days that match; equal filters share what was found for them."""
    return Days(day_filter)


@cache
def sample_of(year: int) -> int:
    """Return the year among the samples whose calendar is the same."""
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


def _matching(chosen: DayFilter, year: int) -> int:
    """Ask dateutil, separately about plain and numbered weekdays.

    Given both at once (``BYDAY=MO,2TU``) it looks for days that are either *and* the other.
    """
    plain = tuple(pair for pair in chosen.byday if not pair[1])
    numbered = tuple(pair for pair in chosen.byday if pair[1])
    days = 0
    for byday in [group for group in (plain, numbered) if group] or [()]:
        days |= _ask(chosen, byday, year)
    return days


def _ask(chosen: DayFilter, byday: tuple[tuple[int, int], ...], year: int) -> int:
    found = rrule(
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
    return sum(1 << day.timetuple().tm_yday - 1 for day in found)
