"""The last runs of the schedules of a page."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.api.checks import check_limit
from celery_dynbeat.api.results.base import Info
from celery_dynbeat.common.run_ids import created_at
from celery_dynbeat.common.states import Origin, Status, lag_of
from celery_dynbeat.process.context import Context
from celery_dynbeat.store.runs import recent_runs as store


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentRun(Info):
    """The data of a bar in a strip of runs.

    - ``scheduled_for`` of a rerun is the fire time of the original run.
    - ``lag`` is the time from the fire time to the send; of a run that its schedule did not make,
      from its record; of a run that waited, from the end of its wait.
    - ``queue_time`` is the time from the send to the start. None after a second attempt, whose
      start replaces the first one.
    - ``duration`` is how long the last attempt took, or None while it is unfinished.
    - ``error`` has at most 200 characters.
    """

    id: str
    status: str
    attempt: int
    origin: str
    scheduled_for: datetime
    fire_count: int
    lag: timedelta | None
    queue_time: timedelta | None
    duration: timedelta | None
    error: str | None


def recent_runs(
    context: Context,
    *,
    schedule_ids: Collection[int],
    limit: int = 30,
    session: Session | None = None,
) -> Mapping[int, Sequence[RecentRun]]:
    """Return the last ``limit`` runs of each schedule, oldest first.

    The result has each id of ``schedule_ids``. On PostgreSQL, one statement reads all runs.
    Elsewhere, it reads the runs of 50 schedules.
    """
    check_limit("limit", limit)
    ids = sorted(set(schedule_ids))
    now = context.now(session)

    def work(session: Session) -> Mapping[int, Sequence[RecentRun]]:
        found: dict[int, list[RecentRun]] = {each: [] for each in ids}
        rows = store.read(session, schedule_ids=ids, until=now, limit=limit)
        for row in sorted(rows, key=lambda row: row.scheduled_for):
            found[row.schedule_id].append(_recent_run(row))
        return found

    return context.read_many(session, work)


def last_errors(context: Context, *, schedule_ids: Collection[int]) -> Mapping[int, str]:
    """Return the first line of the error of the last failed or lost run of each schedule.

    A schedule without such a run among its last 30, or whose run has no error, is left out.
    """
    return {
        key: error.partition("\n")[0]
        for key, runs in recent_runs(context, schedule_ids=schedule_ids).items()
        if (error := _last_error(runs)) is not None
    }


def _last_error(runs: Sequence[RecentRun]) -> str | None:
    failed = (run for run in reversed(runs) if run.status in {Status.FAILED, Status.LOST})
    return next((run.error for run in failed), None)


def _recent_run(row: Any) -> RecentRun:
    fire_time = row.nominal_at or row.scheduled_for
    return RecentRun(
        id=row.id,
        status=row.status,
        attempt=row.attempt,
        origin=row.origin,
        scheduled_for=fire_time,
        fire_count=row.fire_count,
        lag=_lag(row, fire_time),
        queue_time=_queue_time(row),
        duration=_between(row.started_at, row.finished_at),
        error=row.error,
    )


def _lag(row: Any, fire_time: datetime) -> timedelta | None:
    due_at = fire_time if row.origin == Origin.SCHEDULE else created_at(row.id)
    if row.sent_at is None:
        return None
    return lag_of(sent_at=row.sent_at, due_at=due_at, ready_at=row.ready_at)


def _queue_time(row: Any) -> timedelta | None:
    waited = _between(row.sent_at, row.started_at) if row.attempt == 1 else None
    # A worker can be faster than beat, which notes the send after the broker's confirm.
    return None if waited is None else max(waited, timedelta(0))


def _between(start: datetime | None, end: datetime | None) -> timedelta | None:
    return None if start is None or end is None else end - start
