"""Plan schedules again after a release of the tz database: ``dynbeat replan``.

A fire time moves to the nearest one with the release of this process. If that one has passed, it is
due at once, and ``catch_up`` decides. A daily schedule therefore neither loses the run of a day nor
runs twice.

A fire time that has passed is not moved: it is due, or it waits for a hold or for quiet hours. A
schedule without a next run is planned by the release of the process that resumes it.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, cast

from sqlalchemy.orm import Session

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.planning import (
    Calendars,
    ScheduleSpec,
    SpecColumns,
    spec_from_row,
    with_search_budget,
)
from celery_dynbeat.planning.plan import MICROSECOND, due_at
from celery_dynbeat.process.context import Context
from celery_dynbeat.store.schedules import calendars_of, due
from celery_dynbeat.store.schedules.due import DueSchedule

#: The schedules that one transaction locks and plans.
BATCH_SIZE = 50
#: A release moves a fire time back by at most this time.
_LONGEST_MOVE = timedelta(days=1)


class ReplannedBatch(NamedTuple):
    """The number of changed schedules, and the ids of those that others have locked."""

    changed: int
    locked: Sequence[int]


def replan_batch(
    session: Session, context: Context, ids: Sequence[int], *, zone: str | None, now: datetime
) -> ReplannedBatch:
    """Plan these schedules again. With ``zone``, only those that depend on this zone change."""
    rows = due.lock_zoned(session, ids, now=now)
    locked = set(due.zoned_ids(session, ids, now=now)) - {row.id for row in rows}
    wanted = [row for row in rows if zone is None or _may_depend_on(row, zone)]
    calendars, settings = calendars_of(session, wanted), context.settings.for_pass()
    planned = (_change(row, calendars, now=now, settings=settings) for row in wanted)
    changes = [change for change in planned if change is not None]
    due.advance(session, changes)
    earliest = min((each["next_run_at"] for each in changes if each["next_run_at"]), default=None)
    if earliest is not None:
        context.notify_beat(session, next_run_at=earliest, now=now)
    return ReplannedBatch(len(changes), sorted(locked))


def _may_depend_on(row: DueSchedule, zone: str) -> bool:
    """Return whether the row, a part of its trigger or its quiet hours can name the zone."""
    return zone == row.timezone or zone in row.trigger_spec or row.quiet_hours is not None


def _change(
    row: DueSchedule,
    calendars: Calendars,
    *,
    now: datetime,
    settings: Settings,
) -> Mapping[str, Any] | None:
    """Return the changed columns of a row, or None if its next run does not change."""
    try:
        spec = with_search_budget(spec_from_row(cast("SpecColumns", row), settings, calendars))
        before = cast("datetime", row.next_fire_at)
        fire_at = _moved(spec, before, last_run_at=row.last_run_at)
        # Not before now, because beat reads the index from its watermark on.
        next_run_at = None if fire_at is None else max(due_at(spec, fire_at, now=now), now)
    except InvalidTriggerError:
        # Beat quarantines it when it is due.
        return None
    if fire_at is None and spec.calendars:
        # A calendar finishes no schedule. Beat decides when it is due.
        return None
    if fire_at == row.next_fire_at and next_run_at == row.next_run_at:
        return None
    finished_at = now if fire_at is None else None
    return {
        "id": row.id,
        "next_fire_at": fire_at,
        "next_run_at": next_run_at,
        "finished_at": finished_at,
    }


def _moved(
    spec: ScheduleSpec, before: datetime, *, last_run_at: datetime | None
) -> datetime | None:
    """Return the fire time that is the nearest to ``before``, up to ``end_at``, or None.

    It is later than ``last_run_at``.
    """
    nearest = spec.trigger.next_after(before - MICROSECOND)
    after = before - _LONGEST_MOVE
    if spec.start_at is not None:
        after = max(after, spec.start_at - MICROSECOND)
    if last_run_at is not None:
        after = max(after, last_run_at + max(spec.min_interval - MICROSECOND, timedelta(0)))
    if nearest != before and after < before:
        earlier = spec.trigger.latest_until(after=after, until=before)
        if earlier is not None and (nearest is None or before - earlier < nearest - before):
            nearest = earlier
    if nearest is None or (spec.end_at is not None and nearest > spec.end_at):
        return None
    return nearest
