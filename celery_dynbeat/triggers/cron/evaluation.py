"""The instants at which a cron expression fires, by the rule of Debian's cron(8).

Its manual says about clock changes: jobs "that run at a particular time" and fall into the skipped
hour run soon after the change, those in the repeated hour "will not be re-run"; jobs "specified
with wildcards are run based on the new time immediately".
"""

from datetime import datetime
from zoneinfo import ZoneInfo

from celery_dynbeat.triggers.cron.wall_times import WallTimes
from celery_dynbeat.triggers.zones import first_instant, fold_at, next_wall, wall_at


def next_fixed(times: WallTimes, zone: ZoneInfo, instant: datetime) -> datetime:
    """Return the next fire time of a fixed expression.

    A wall time fires at the first instant that has reached it: after a gap, or in the first pass
    of a fold. So in the second pass, the next wall time is one after the fold.
    """
    return first_instant(zone, times.first_from(next_wall(zone, instant)))[0]


def next_wildcard(times: WallTimes, zone: ZoneInfo, instant: datetime) -> datetime:
    """Return the next fire time of a wildcard expression: the next instant that shows a match."""
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
