"""Plan schedules again after a release of the tz database.

A beat that starts with a newer release than the schedules were planned with plans them again, once:

    newer release       -> record it, start at the first id
    a batch of ids      -> the schedules in it whose next fire time has changed, then the position
    rows that are locked -> left out; their ids are stored
    the last id         -> the rows that were locked, until none of them is

The row of the application has the release and the position, and each batch locks it. So several
beats share the work, and a crash loses at most one batch. Only a newer release starts this: beats
with different releases do not undo each other's work.

A fire time moves to the nearest one with the new release. If that one has passed, it is due at
once, and ``catch_up`` decides. A daily schedule therefore neither loses the run of a day nor runs
twice.

A fire time that has passed is not moved: it is due, or it waits for a hold or for quiet hours. A
schedule without a next run is planned by the release of the process that resumes it.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, cast

from sqlalchemy.orm import Session

from celery_dynbeat import store
from celery_dynbeat.beat.fairness import PlanningTime
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.planning import (
    Calendars,
    ScheduleSpec,
    SpecColumns,
    spec_from_row,
    with_search_budget,
    without,
)
from celery_dynbeat.planning.plan import MICROSECOND, due_at
from celery_dynbeat.store import TzState
from celery_dynbeat.store.runs import skips
from celery_dynbeat.store.schedules import calendars_of, due
from celery_dynbeat.store.schedules.due import DueSchedule

logger = logging.getLogger(__name__)

#: A release moves a fire time back by at most this time.
_LONGEST_MOVE = timedelta(days=1)
#: Beat reads no further ids while so many schedules are locked.
MAX_LOCKED = 1_000


class Batch(NamedTuple):
    """The result of one batch. ``is_waiting`` means that only locked rows are left for now."""

    changed: int
    is_done: bool
    is_waiting: bool = False


def replan_batch(session: Session, *, now: datetime, settings: Settings, release: str) -> Batch:
    """Plan the next batch of schedules again with ``release``, the release of this process."""
    connection = session.connection()
    state = store.lock_tz_state(connection)
    if state is None:
        return Batch(0, is_done=False, is_waiting=True)
    if state.release is None:
        # The first beat: the schedules were planned with the present releases.
        store.set_tz_state(connection, TzState(release))
        return Batch(0, is_done=True)
    if is_newer(release, state.release):
        state = TzState(release, after_id=0)
    if state.release != release or state.after_id is None:
        return Batch(0, is_done=True)
    size = settings.batch_size
    is_full = len(state.locked_ids) >= MAX_LOCKED
    following = () if is_full else due.ids_after(session, after=state.after_id, limit=size)
    is_end = len(following) < size
    again = state.locked_ids[:size] if is_end else ()
    ids = [*again, *following]
    rows = {row.id: row for row in due.lock_zoned(session, ids, now=now)}
    # Beat or an application has locked the others, or they need no new plan.
    locked = set(due.zoned_ids(session, ids, now=now)) - rows.keys()
    changes, unplanned = _changes(session, list(rows.values()), now=now, settings=settings)
    due.advance(session, changes)
    reached = {each for each in ids if unplanned is None or each < unplanned}
    after_id = max((each for each in following if each in reached), default=state.after_id)
    left = [each for each in ids if each <= after_id and (each in locked or each not in reached)]
    locked_ids = (*state.locked_ids[len(again) :], *left)
    is_end = is_end and unplanned is None
    is_done = is_end and not is_full and not locked_ids
    store.set_tz_state(
        connection, TzState(release, None if is_done else after_id, tuple(locked_ids))
    )
    if changes:
        logger.info(
            "%s schedules were planned again with release %s of the tz database",
            len(changes),
            release,
            extra={"event": Event.ZONES_REPLANNED, "schedules": len(changes), "release": release},
        )
    return Batch(len(changes), is_done=is_done, is_waiting=is_end)


def is_newer(release: str, other: str) -> bool:
    """Return whether a release such as 2026b follows another release."""
    return _order(release) > _order(other)


def _order(release: str) -> tuple[str, int, str]:
    # After 2026z comes 2026za.
    return release[:4], len(release), release


def _changes(
    session: Session, rows: Sequence[DueSchedule], *, now: datetime, settings: Settings
) -> tuple[Sequence[Mapping[str, Any]], int | None]:
    """Return the changed columns of the rows, and the id of the first row that is not planned.

    The planning time does not reach that row. None means that all rows are planned.
    """
    skipped = skips.of_rows(session, rows, now=now)
    calendars = calendars_of(session, rows)
    planning_time = PlanningTime(batch_size=settings.batch_size)
    changes: list[Mapping[str, Any]] = []
    for row in rows:
        if not planning_time.has_time_for(row.owner):
            return changes, row.id
        change = _change(row, skipped.get(row.id, ()), calendars, now=now, settings=settings)
        if change is not None:
            changes.append(change)
        planning_time.add_row(row.owner)
    return changes, None


def _change(
    row: DueSchedule,
    skipped: Sequence[datetime],
    calendars: Calendars,
    *,
    now: datetime,
    settings: Settings,
) -> Mapping[str, Any] | None:
    """Return the changed columns of a row, or None if its next run does not change."""
    try:
        whole = spec_from_row(cast("SpecColumns", row), settings, calendars)
        spec = without(with_search_budget(whole), skipped)
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
