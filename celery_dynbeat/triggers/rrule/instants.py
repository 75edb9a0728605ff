"""The instants of a rule's wall times around clock changes."""

from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

from celery_dynbeat.triggers.rrule.recurrence import instant_of
from celery_dynbeat.triggers.rrule.wall_times import RuleWallTimes
from celery_dynbeat.triggers.search_budget import SearchBudget
from celery_dynbeat.triggers.zones import first_instant, gap_before, next_wall, wall_at


def candidates(
    times: RuleWallTimes, zone: ZoneInfo, instant: datetime, budget: SearchBudget
) -> Iterator[datetime]:
    """Yield fire times after ``instant``, of which the earliest is the next one.

    Wall times and their instants have the same order, except around a gap. Wall times in the gap
    are read with the old offset, so they share their instants with the wall times after the gap.
    """
    starts = [next_wall(zone, instant)]
    gap = gap_before(zone, instant)
    if gap:
        starts.append(starts[0] - gap.length)
    for start in starts:
        wall = times.first_from(start, budget)
        if wall is None:
            continue
        candidate = instant_of(zone, wall)
        if candidate > instant:
            yield candidate
        change, exists = first_instant(zone, wall)
        later = None if exists else times.first_from(wall_at(zone, change), budget)
        if later is not None and instant_of(zone, later) > instant:
            yield instant_of(zone, later)
