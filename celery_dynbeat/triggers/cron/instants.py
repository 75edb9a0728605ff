"""The instants at which a cron expression fires, by the rule of Debian's cron(8), and their number.

Its manual says about clock changes: jobs "that run at a particular time" and fall into the skipped
hour run soon after the change, those in the repeated hour "will not be re-run"; jobs "specified
with wildcards are run based on the new time immediately".

A count does not search for each fire time. While the offset of a zone stays the same, its clock
shows each wall time once. The span is therefore cut where the offset changes, and the matching wall
times of each piece are counted. A wildcard expression fires whenever the clock shows a match, so
its count is the sum of the pieces. A fixed expression fires when the clock reaches a match. Wall
times that an earlier piece has shown do not count again, and wall times in a gap share one instant.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from celery_dynbeat.triggers.cron.wall_times import WallTimes
from celery_dynbeat.triggers.zones import end_of_offset, first_instant, fold_at, next_wall, wall_at

_SECOND = timedelta(seconds=1)
# Short pieces, so that a count stops soon after it reaches its limit.
_MAX_PIECE = timedelta(days=400)


def next_fixed(times: WallTimes, zone: ZoneInfo, instant: datetime) -> datetime:
    """Return the next fire time of a fixed expression.

    A wall time fires at the first instant that has reached it: after a gap, or in the first pass of
    a fold. In the second pass, the next wall time is therefore a time after the fold.
    """
    return first_instant(zone, times.first_from(next_wall(zone, instant)))[0]


def next_wildcard(times: WallTimes, zone: ZoneInfo, instant: datetime) -> datetime:
    """Return the next fire time of a wildcard expression, at which the clock shows a match."""
    wall = times.first_after(wall_at(zone, instant))
    fold = fold_at(zone, instant)
    if fold is None or (not fold.second_pass and wall < fold.end):
        return _first_shown(times, zone, wall)
    if not fold.second_pass:
        wall = times.first_from(fold.first)
    if wall < fold.end:
        return (wall - fold.offset_in_second_pass).replace(tzinfo=instant.tzinfo)
    return _first_shown(times, zone, wall)


def _first_shown(times: WallTimes, zone: ZoneInfo, wall: datetime) -> datetime:
    """Return the first instant that shows ``wall``, or a later match if ``wall`` is in a gap."""
    instant, shown = first_instant(zone, wall)
    while not shown:
        wall = times.first_from(wall_at(zone, instant))
        instant, shown = first_instant(zone, wall)
    return instant


def count_fire_times(
    times: WallTimes, zone: ZoneInfo, *, after: datetime, until: datetime, limit: int
) -> int:
    """Count the fire times in ``(after, until]``, at most up to ``limit``, which is positive.

    The span lies between EARLIEST and LATEST.
    """
    # Fire times fall on whole seconds, so the ends of the span may be rounded down.
    after, until = after.replace(microsecond=0), until.replace(microsecond=0)
    pieces = _pieces(zone, after + _SECOND, until + _SECOND)
    counts: Iterable[int]
    if times.wildcard:
        counts = (times.count_between(start, stop) for start, stop in pieces)
    else:
        counts = _fixed_counts(times, pieces, unreached=next_wall(zone, after))
    total = 0
    for count in counts:
        total += count
        if total >= limit:
            return limit
    return total


def _fixed_counts(
    times: WallTimes, pieces: Iterable[tuple[datetime, datetime]], *, unreached: datetime
) -> Iterator[int]:
    """Yield how many fixed times each piece reaches, beginning with the time ``unreached``."""
    for start, stop in pieces:
        if unreached < start:
            # The wall times in the gap and the one right after it fire at one instant.
            yield min(times.count_between(unreached, start + _SECOND), 1)
            unreached = start + _SECOND
        if unreached < stop:
            yield times.count_between(unreached, stop)
            unreached = stop


def _pieces(zone: ZoneInfo, start: datetime, stop: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Yield the wall times of ``[start, stop)`` in pieces with one offset each.

    A piece is its first wall time and its end. The clock does not show the end if it changes there.
    """
    while start < stop:
        end = end_of_offset(zone, start, min(stop, start + _MAX_PIECE))
        wall = wall_at(zone, start)
        yield wall, wall + (end - start)
        start = end
