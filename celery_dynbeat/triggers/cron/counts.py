"""How many fire times a cron expression has in a span, told by the calendar instead of by a walk.

While the offset of a zone stays the same its clock shows each wall time once. So the span is cut
where the offset changes, and in each piece the matching wall times are counted: so many on each
matching day, and on its first and last day the rank of a time of day. A wildcard expression fires
whenever the clock shows a match, which makes the sum. A fixed one fires when the clock has reached
it: what an earlier piece has shown is left out, and what a gap skips falls on one instant.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from math import prod
from zoneinfo import ZoneInfo

from celery_dynbeat.triggers.cron.dates import Days, days_in, possible_days
from celery_dynbeat.triggers.cron.fields import parse_fields, picked_by
from celery_dynbeat.triggers.zones import fixed_offset, fold_at, wall_at

_SECOND = timedelta(seconds=1)
# In the tz database since 1900 two changes of the clock lie almost four days apart at the least
# (Freetown, 1939). So an offset that is the same at both ends of a stride is so throughout.
_STRIDE = timedelta(days=3)
# So that a count which is limited ends soon.
_LONGEST_PIECE = timedelta(days=400)


@dataclass(frozen=True, slots=True)
class WallTimes:
    """The wall times that an expression names: times of day, on days of some months.

    ``clock`` are its hours, minutes and seconds, each in order; a day matches when one of ``days``
    names it.
    """

    wildcard: bool
    days: tuple[Days, ...]
    months: tuple[int, ...]
    clock: tuple[tuple[int, ...], ...]

    def between(self, start: datetime, stop: datetime) -> int:
        """Count those in ``[start, stop)``; both fall on a second."""
        first, last = start.date(), stop.date()
        dates = list(self._dates(first, last))
        times = prod(map(len, self.clock))
        count = len(dates) * times
        if dates and dates[0] == first:
            count -= self._times_before(start)
        if dates and dates[-1] == last:
            count -= times - self._times_before(stop)
        return count

    def _dates(self, first: date, last: date) -> Iterator[date]:
        """Yield the matching dates from ``first`` to ``last``, oldest first."""
        for month in range(first.year * 12 + first.month - 1, last.year * 12 + last.month):
            for day in self._dates_in(month // 12, month % 12 + 1):
                if first <= day <= last:
                    yield day

    def _dates_in(self, year: int, month: int) -> list[date]:
        if month not in self.months:
            return []
        named = {day for days in self.days for day in days_in(days, year=year, month=month)}
        return [date(year, month, day) for day in sorted(named)]

    def _times_before(self, wall: datetime) -> int:
        """Return how many matching times of day lie before that of ``wall``."""
        rank, exact = 0, True
        for values, value in zip(self.clock, (wall.hour, wall.minute, wall.second), strict=True):
            place = bisect_left(values, value) if exact else 0
            rank = rank * len(values) + place
            exact = exact and value in values[place : place + 1]
        return rank


@lru_cache(maxsize=4096)
def wall_times(expression: str, *, day_or: bool) -> WallTimes:
    """Prepare a valid expression for counting; what waits for a key gets the empty one."""
    fields = parse_fields(expression)
    if fields.hashed:
        return wall_times(picked_by("", fields), day_or=day_or)
    seconds = (0,) if fields.second is None else fields.second.values
    clock = (fields.hour.values, fields.minute.values, seconds)
    days = possible_days(fields, day_or=day_or)
    return WallTimes(fields.wildcard, days, fields.month.values, clock)


def count(times: WallTimes, zone: ZoneInfo, *, after: datetime, until: datetime, limit: int) -> int:
    """Count the fire times in ``(after, until]``, at most up to ``limit``, which is positive.

    The span lies in the years 1900 to 9900, in UTC.
    """
    # Fire times fall on whole seconds, so the span may end and begin on them.
    after, until = after.replace(microsecond=0), until.replace(microsecond=0)
    pieces = _pieces(zone, after + _SECOND, until + _SECOND)
    counts: Iterable[int]
    if times.wildcard:
        counts = (times.between(start, stop) for start, stop in pieces)
    else:
        counts = _fixed(times, pieces, reached=_reached(zone, after))
    total = 0
    for each in counts:
        total += each
        if total >= limit:
            return limit
    return total


def _fixed(
    times: WallTimes, pieces: Iterable[tuple[datetime, datetime]], *, reached: datetime
) -> Iterator[int]:
    """Yield how many fixed times each piece reaches of those from ``reached`` on."""
    for start, stop in pieces:
        if reached < start:
            # What the gap skips and what is shown right after it fire at once.
            yield min(times.between(reached, start + _SECOND), 1)
            reached = start + _SECOND
        if reached < stop:
            yield times.between(reached, stop)
            reached = stop


def _reached(zone: ZoneInfo, instant: datetime) -> datetime:
    """Return the first wall time that the clock has not shown yet once ``instant`` is over."""
    fold = fold_at(zone, instant)
    if fold is not None and fold.second_pass:
        return fold.end
    return wall_at(zone, instant) + _SECOND


def _pieces(zone: ZoneInfo, start: datetime, stop: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Yield the wall times of ``[start, stop)`` in pieces during which the offset is the same.

    Each has its start and its end, which the clock does not show if it changes there. None is much
    longer than a year.
    """
    while start < stop:
        end = _end_of_offset(zone, start, min(stop, start + _LONGEST_PIECE))
        wall = wall_at(zone, start)
        yield wall, wall + (end - start)
        start = end


def _end_of_offset(zone: ZoneInfo, start: datetime, stop: datetime) -> datetime:
    """Return the first instant with another offset than ``start`` has; ``stop`` if none is."""
    if fixed_offset(zone) is not None:
        return stop
    offset, same = _offset_at(zone, start), start
    other = min(same + _STRIDE, stop)
    while other < stop and _offset_at(zone, other) == offset:
        same, other = other, min(other + _STRIDE, stop)
    while other - same > _SECOND:
        middle = same + (other - same) // _SECOND // 2 * _SECOND
        if _offset_at(zone, middle) == offset:
            same = middle
        else:
            other = middle
    return other


def _offset_at(zone: ZoneInfo, instant: datetime) -> timedelta | None:
    return instant.astimezone(zone).utcoffset()
