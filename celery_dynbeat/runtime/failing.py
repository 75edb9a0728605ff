"""Keep ``failing_since`` of schedules up to date when their runs end, and pause those that fail.

A worker does so for a failed run. Beat does so for all others, and for schedules that were locked:
no process waits for a schedule that an application has locked. ``store.failing`` lists the cases.
"""

from collections import defaultdict
from datetime import datetime, timedelta
from functools import partial

from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.engine import Database
from celery_dynbeat.runtime.pausing import pause_if_failing
from celery_dynbeat.store import failing
from celery_dynbeat.store.rows import UNREADABLE, RowLockedError, format_error
from celery_dynbeat.telemetry import events
from celery_dynbeat.telemetry.emitting import emit, has_listeners

#: Ended runs whose schedules one call corrects. Each takes up to two transactions.
MAX_DEFERRED = 100


def note_failure(database: Database, *, run_id: str, at: datetime, settings: Settings) -> None:
    """Correct ``failing_since`` of the schedule whose run has failed, and pause it if it must be.

    Call it after the commit of the end. For a schedule that fails already, and has no limit of
    failures, this is one read.
    """
    schedule = database.read(partial(failing.schedule_of, run_id=run_id))
    if schedule is None:
        return
    try:
        if schedule.failing_since is None:
            _refresh(database, schedule.id)
        _pause_if_failing(database, schedule.id, schedule.own_limit, now=at, settings=settings)
    except RowLockedError:
        database.run_autocommit(partial(failing.defer, run_ids=[run_id], until=at))


def settle_deferred(
    database: Database, *, now: datetime, settings: Settings, retry_after: timedelta
) -> int:
    """Correct and pause the schedules of up to MAX_DEFERRED ended runs; return how many these are.

    A schedule that is still locked is tried again after ``retry_after``. One whose history cannot
    be read does not affect the others.
    """
    read = partial(failing.deferred, now=now, limit=MAX_DEFERRED)
    deferred = database.read_in_transaction(read)
    runs: defaultdict[tuple[int | None, int | None], list[failing.DeferredEnd]] = defaultdict(list)
    for end in deferred:
        runs[end.schedule_id, end.own_limit].append(end)
    for (schedule_id, own_limit), ended in runs.items():
        until = None
        try:
            if schedule_id is not None:
                _refresh(database, schedule_id)
            _pause_if_failing(database, schedule_id, own_limit, now=now, settings=settings)
        except RowLockedError:
            until = now + retry_after
        # A value in the history of this schedule, which only SQL writes. The next end tries again.
        except UNREADABLE as error:
            emit(
                events.HistoryUnreadable(
                    schedule_id=schedule_id,
                    owner=ended[0].owner,
                    schedule=ended[0].name,
                    error=format_error(error),
                )
            )
        ids = [run.id for run in ended]
        database.run_autocommit(partial(failing.defer, run_ids=ids, until=until))
    return len(deferred)


def _refresh(database: Database, schedule_id: int) -> None:
    """Set ``failing_since`` of a schedule from its history."""
    recovered = database.run(partial(failing.refresh, schedule_id=schedule_id))
    if recovered is not None and has_listeners(events.ScheduleRecovered):
        event = events.ScheduleRecovered(
            schedule_id=schedule_id,
            owner=recovered.owner,
            schedule=recovered.name,
            failing_since=recovered.failing_since,
        )
        emit(event)


def _pause_if_failing(
    database: Database,
    schedule_id: int | None,
    own_limit: int | None,
    *,
    now: datetime,
    settings: Settings,
) -> None:
    limit = settings.pause_after_failures if own_limit is None else own_limit
    # The schedule of a run may have been deleted.
    if schedule_id is None or not limit:
        return
    pause = partial(pause_if_failing, schedule_id=schedule_id, limit=limit, audit=settings.audit)
    database.run(partial(pause, now=now))
