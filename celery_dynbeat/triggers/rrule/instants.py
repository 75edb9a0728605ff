"""The instants of a rule's wall times around clock changes."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from celery_dynbeat.triggers.rrule.recurrence import instant_of
from celery_dynbeat.triggers.rrule.wall_times import RuleWallTimes
from celery_dynbeat.triggers.search_budget import SearchBudget
from celery_dynbeat.triggers.zones import first_instant, fold_at, offset_at, wall_at

_SECOND = timedelta(seconds=1)
# The longest gap in the tz database is the day that Samoa skipped.
_LONGEST_GAP = timedelta(hours=25)


def candidates(
    times: RuleWallTimes, zone: ZoneInfo, instant: datetime, budget: SearchBudget
) -> Iterator[datetime]:
    """Yield fire times after ``instant``, of which the earliest is the next one.

    Wall times and their instants have the same order, except around a gap. Wall times in the gap
    are read with the old offset, so they share their instants with the wall times after the gap.
    """
    shown = wall_at(zone, instant)
    fold = fold_at(zone, instant)
    starts = [fold.end if fold and fold.second_pass else shown + _SECOND]
    gap = _recent_gap(zone, instant)
    if gap:
        starts.append(shown - gap + _SECOND)
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


def _recent_gap(zone: ZoneInfo, instant: datetime) -> timedelta | None:
    """Return the length of the last gap if it ended less than that length before ``instant``."""
    now, before = offset_at(zone, instant), offset_at(zone, instant - _LONGEST_GAP)
    length = now - before
    if length > timedelta() and offset_at(zone, instant - length) == before:
        return length
    return None
