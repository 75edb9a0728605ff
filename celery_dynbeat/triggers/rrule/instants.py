"""Instants of a rule's wall times, around changes of clocks."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from celery_dynbeat.triggers.budget import Budget
from celery_dynbeat.triggers.rrule.text import instant_of
from celery_dynbeat.triggers.rrule.walls import Walls
from celery_dynbeat.triggers.zones import first_instant, fold_at, offset_at, wall_at

_SECOND = timedelta(seconds=1)
# No clock was ever changed by more than a day, the one that Samoa left out.
_LONGEST_GAP = timedelta(hours=25)


def readings(walls: Walls, zone: ZoneInfo, instant: datetime, budget: Budget) -> Iterator[datetime]:
    """Yield the fire times after ``instant`` that may be the first.

    Wall times follow each other as their instants do, except around a gap: those inside it are
    read with the old offset, so they share their instants with those that follow it.
    """
    shown = wall_at(zone, instant)
    fold = fold_at(zone, instant)
    walls_from = [fold.end if fold and fold.second_pass else shown + _SECOND]
    gap = _recent_gap(zone, instant)
    if gap:
        walls_from.append(shown - gap + _SECOND)
    for start in walls_from:
        wall = walls.first_from(start, budget)
        if wall is None:
            continue
        reading = instant_of(zone, wall)
        if reading > instant:
            yield reading
        change, exists = first_instant(zone, wall)
        later = None if exists else walls.first_from(wall_at(zone, change), budget)
        if later is not None and instant_of(zone, later) > instant:
            yield instant_of(zone, later)


def _recent_gap(zone: ZoneInfo, instant: datetime) -> timedelta | None:
    """Return the length of the gap that ended before ``instant`` by less than its length."""
    now, before = offset_at(zone, instant), offset_at(zone, instant - _LONGEST_GAP)
    length = now - before
    if length > timedelta() and offset_at(zone, instant - length) == before:
        return length
    return None
