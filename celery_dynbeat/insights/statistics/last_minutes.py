"""The ended runs of the last minutes, from the rollup and, for the newest minutes, from the runs.

A run counts in the minute in which it ended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from celery_dynbeat.store import rollups
from celery_dynbeat.store.rollups import MINUTE, NOTHING, Figures


@dataclass(frozen=True, slots=True)
class Minute:
    """The runs that ended in the minute from ``at``."""

    at: datetime
    figures: Figures


def last_minutes(session: Session, *, now: datetime, count: int) -> Sequence[Minute]:
    """Return the last ``count`` minutes, oldest first. The last is the present minute.

    With more than MAX_LIVE_RUNS in a minute that is not counted yet, the last is the one before it.
    """
    newest, end = live_minutes(session, now=now)
    start = end - count * MINUTE
    figures = {**rollups.by_minute(session, since=start, until=end), **newest}
    minutes = [start + number * MINUTE for number in range(count)]
    return [Minute(at, figures.get(at, NOTHING)) for at in minutes]


def live_minutes(session: Session, *, now: datetime) -> tuple[Mapping[datetime, Figures], datetime]:
    """Return the figures of the minutes that are not counted yet, and the end of the known ones."""
    at = end = rollups.floor(now) + MINUTE
    at -= rollups.MAX_LIVE_MINUTES * MINUTE
    counted = rollups.counted_until(session)
    if counted is not None:
        at = max(at, counted)
    found: dict[datetime, Figures] = {}
    while at < end:
        counts = rollups.count(session, since=at, until=at + MINUTE, limit=rollups.MAX_LIVE_RUNS)
        if counts.is_cut:
            return found, at
        found[at] = counts.total()
        at += MINUTE
    return found, end
