"""Keep ``failing_since`` of schedules up to date when their runs end, and pause those that fail.

A worker does so for a failed run. Beat does so for all others, and for schedules that were locked:
no process waits for a schedule that an application has locked. ``store.failing`` lists the cases.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

from celery_dynbeat.common.run_states import Status
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.engine import Database
from celery_dynbeat.store import failing
from celery_dynbeat.store.rows import UNREADABLE, RowLockedError, format_error
from celery_dynbeat.telemetry import events
from celery_dynbeat.telemetry.emitting import emit, has_listeners
from celery_dynbeat.transitions.pausing import pause_if_failing

#: Ended runs whose schedules one call corrects, in one transaction that locks the schedules.
MAX_DEFERRED = 20


def note_failure(database: Database, *, run_id: str, at: datetime, settings: Settings) -> None:
    """Correct ``failing_since`` of the schedule whose run has failed, and pause it if it must be.

    Call it after the commit of the end. For a schedule that fails already, and has no limit of
    failures, this is one read.
    """
    schedule = database.read(partial(failing.schedule_of, run_id=run_id))
    if schedule is None:
        return
    outdated = [] if schedule.failing_since is not None else [schedule.id]
    refreshed = _refresh(database, outdated)
    is_left = bool(refreshed.locked or refreshed.unreadable)
    if not is_left:
        try:
            _pause_if_failing(database, schedule.id, schedule.own_limit, now=at, settings=settings)
        except (RowLockedError, *UNREADABLE):
            is_left = True
    if is_left:
        # Beat tries again, and reports a history that cannot be read.
        database.run_autocommit(partial(failing.defer, run_id=run_id, until=at))


def settle_deferred(
    database: Database,
    *,
    now: datetime,
    settings: Settings,
    retry_after: timedelta,
    since: datetime | None = None,
) -> int:
    """Correct and pause the schedules of up to MAX_DEFERRED ended runs; return how many these are.

    With ``since``, only ends that were deferred to a later instant count. A schedule that is still
    locked is tried again after ``retry_after``. One whose history cannot be read does not affect
    the others.
    """
    read = partial(failing.deferred, now=now, limit=MAX_DEFERRED, since=since)
    ends = database.read_in_transaction(read)
    # The schedule of a run may have been deleted.
    schedules = {end.schedule_id: end for end in ends if end.schedule_id is not None}
    refreshed = _refresh(database, sorted(schedules))
    locked, unreadable = set(refreshed.locked), dict(refreshed.unreadable)
    limits = {(end.schedule_id, end.own_limit) for end in ends if end.status != Status.SUCCEEDED}
    for schedule_id, own_limit in limits:
        if schedule_id is None or schedule_id in locked or schedule_id in unreadable:
            continue
        try:
            _pause_if_failing(database, schedule_id, own_limit, now=now, settings=settings)
        except RowLockedError:
            locked.add(schedule_id)
        except UNREADABLE as error:
            unreadable[schedule_id] = error
    # A value in the history of the schedule, which only SQL writes. The next end tries again.
    for schedule_id, reason in unreadable.items():
        end = schedules[schedule_id]
        emit(
            events.HistoryUnreadable(
                schedule_id=schedule_id,
                owner=end.owner,
                schedule=end.name,
                error=format_error(reason),
            )
        )
    again = [end for end in ends if end.schedule_id in locked]
    done = [end for end in ends if end.schedule_id not in locked]
    until = now + retry_after
    database.run_autocommit(partial(failing.set_corrected, ends=again, until=until))
    database.run_autocommit(partial(failing.set_corrected, ends=done))
    return len(ends)


def _refresh(database: Database, schedule_ids: Sequence[int]) -> failing.Refreshed:
    """Set ``failing_since`` of schedules from their history."""
    if not schedule_ids:
        return failing.Refreshed((), set(), {})
    refreshed = database.run(partial(failing.refresh, schedule_ids=schedule_ids))
    if has_listeners(events.ScheduleRecovered):
        for recovered in refreshed.recovered:
            emit(
                events.ScheduleRecovered(
                    schedule_id=recovered.schedule_id,
                    owner=recovered.owner,
                    schedule=recovered.name,
                    failing_since=recovered.failing_since,
                )
            )
    return refreshed


def _pause_if_failing(
    database: Database,
    schedule_id: int,
    own_limit: int | None,
    *,
    now: datetime,
    settings: Settings,
) -> None:
    limit = settings.pause_after_failures if own_limit is None else own_limit
    if not limit:
        return
    pause = partial(pause_if_failing, schedule_id=schedule_id, limit=limit, audit=settings.audit)
    database.run(partial(pause, now=now))
