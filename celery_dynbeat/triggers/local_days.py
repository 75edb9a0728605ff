"""The days of a zone: when a day begins and ends, and which days a zone skipped.

A day begins at the first instant at which the clock shows its midnight or a later time.
"""

from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from celery_dynbeat.triggers.zones import first_instant, offset_at, wall_at

_DAY = timedelta(days=1)
# Longer than any change of summer time, shorter than a move across the date line.
_DATE_LINE = timedelta(hours=12)


class LocalDay(NamedTuple):
    """A date of a zone, the instant at which it begins, and the instant at which it ends."""

    date: date
    start: datetime
    end: datetime


def day_around(zone: ZoneInfo, instant: datetime) -> LocalDay:
    """Return the day of ``zone`` in which ``instant`` lies.

    This is the last day whose midnight has passed. A clock that goes back over midnight shows the
    old date once more, but the new day has begun.
    """
    day = wall_at(zone, instant).date()
    end = _midnight(zone, day + _DAY)
    if instant >= end:
        day, end = day + _DAY, _midnight(zone, day + 2 * _DAY)
    return LocalDay(day, _midnight(zone, day), end)


@lru_cache(maxsize=1024)
def skipped_days(zone: ZoneInfo) -> tuple[date, ...]:
    """Return the dates that ``zone`` skipped, as Apia skipped 30 December 2011."""
    years = range(1900, 2101)
    offsets = [offset_at(zone, datetime(year, 1, 1, tzinfo=UTC)) for year in years]
    changes = zip(years, offsets, offsets[1:], strict=False)
    moved = [year for year, before, after in changes if after - before > _DATE_LINE]
    days = [date(year, 1, 1) + n * _DAY for year in moved for n in range(-1, 368)]
    return tuple(day for day in days if _midnight(zone, day) == _midnight(zone, day + _DAY))


def _midnight(zone: ZoneInfo, day: date) -> datetime:
    return first_instant(zone, datetime.combine(day, time()))[0]
