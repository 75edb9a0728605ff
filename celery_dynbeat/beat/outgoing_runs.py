"""Runs that beat sends, from the rows of a claim and of a sweep, and the rows of new ones."""

from datetime import datetime
from typing import Any

from celery_dynbeat.common.retry import effective_retry
from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import Origin, Status, Wait
from celery_dynbeat.planning import expires_at
from celery_dynbeat.planning.plan import OutgoingRun
from celery_dynbeat.store.runs import OverdueRun
from celery_dynbeat.store.schedules.due import DueSchedule


def check_payload(row: DueSchedule | OverdueRun) -> None:
    """Raise TypeError if Python cannot read the arguments of the row: they are None."""
    # The API rejects such arguments. Manual SQL can write numbers of 5,000 digits.
    if None in (row.args, row.kwargs, row.options):
        column = next(name for name in ("args", "kwargs", "options") if getattr(row, name) is None)
        msg = f"{column} has too many digits or levels to be read"
        raise TypeError(msg)


def new_run(
    row: DueSchedule,
    fire_at: datetime,
    *,
    now: datetime,
    settings: Settings,
    next_fire_at: datetime | None = None,
) -> OutgoingRun:
    """Return a new run of a schedule. ``next_fire_at`` is the schedule's fire time after it."""
    return _outgoing(
        row,
        settings,
        run_id=new_run_id(now),
        schedule_id=row.id,
        fire_at=fire_at,
        origin=Origin.SCHEDULE,
        expires_at=expires_at(row.expires_after, created_at=now, settings=settings),
        next_fire_at=next_fire_at,
    )


def recorded_run(row: OverdueRun, *, settings: Settings) -> OutgoingRun:
    """Return a recorded run. Raises TypeError like ``check_payload``."""
    check_payload(row)
    return _outgoing(
        row,
        settings,
        run_id=row.id,
        schedule_id=row.schedule_id,
        # A rerun has the fire time of its original run.
        fire_at=row.nominal_at or row.fire_at,
        origin=row.origin,
        expires_at=expiry_of(row, settings=settings),
        attempt=row.attempt,
        retries=row.retries,
        unstarted_since=None if row.attempt else row.sent_at,
        # The next fire time replaces no run that was requested.
        next_fire_at=row.next_fire_at if row.origin == Origin.SCHEDULE else None,
        ready_at=row.ready_at,
    )


def expiry_of(row: OverdueRun, *, settings: Settings) -> datetime | None:
    """Return when a recorded run expires, or None if it never does.

    A run with an attempt that counts has started in time. The attempt of a run that its task has
    postponed does not count. A run of a batch expires only after it could be sent.
    """
    since = row.created_at if row.batch_id is None else row.ready_at
    if not row.is_unstarted or since is None:
        return None
    return expires_at(row.expires_after, created_at=since, settings=settings)


def _outgoing(row: DueSchedule | OverdueRun, settings: Settings, **of_run: Any) -> OutgoingRun:
    # A backfill is about the past. Its pings would hide that the schedule does not run now.
    may_ping = settings.ping_hosts is not None and of_run["origin"] != Origin.BACKFILL
    retry = effective_retry(row.retry, settings.retry)
    return OutgoingRun(
        owner=row.owner,
        name=row.name,
        version=row.version,
        task=row.task,
        args=row.args,
        kwargs=row.kwargs,
        options=row.options,
        overlap=row.overlap or settings.overlap,
        pings=may_ping and row.pings,
        retry=retry if retry is not None and retry.max_retries else None,
        **of_run,
    )


def pending_row(
    run: OutgoingRun, *, now: datetime, overdue_at: datetime, waits_for: Wait | None = None
) -> dict[str, Any]:
    """Return the row of a pending run. The sweep sends it after ``overdue_at``."""
    return {
        "schedule_id": run.schedule_id,
        "owner": run.owner,
        "name": run.name,
        "task": run.task,
        "id": run.run_id,
        "fire_at": run.fire_at,
        "status": Status.PENDING,
        "origin": run.origin,
        "created_at": now,
        "overdue_at": overdue_at,
        "finished_at": None,
        "waited_for": waits_for,
        "ready_at": run.ready_at,
        "fire_count": 1,
        "error": None,
    }
