"""Count the fire times of a cron expression in a span without finding each of them.

While the offset of a zone stays the same, its clock shows each wall time once. So the span is cut
where the offset changes, and the matching wall times of each piece are counted. A wildcard
expression fires whenever the clock shows a match: its count is the sum of the pieces. A fixed
expression fires when the clock reaches a match. Wall times that an earlier piece has shown do not
count again, and wall times in a gap share one instant.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from celery_dynbeat.triggers.cron.wall_times import WallTimes
from celery_dynbeat.triggers.zones import end_of_offset, next_wall, wall_at

_SECOND = timedelta(seconds=1)
# Short pieces, so that a count stops soon after it reaches its limit.
_MAX_PIECE = timedelta(days=400)


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
