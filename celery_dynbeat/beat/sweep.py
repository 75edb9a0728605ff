"""Runs that were recorded but never started: publish them again, under the same id.

- ``pending`` for longer than dynbeat_dispatch_timeout: beat died between the commit and the
  publish, the broker was away, or its answer was lost. A manual run is overdue from its birth.
- ``pending`` because its queue is refused or its router raises: overdue when the next try is due.
- ``pending`` behind a run that has not ended, under ``overlap="buffer_one"``: put off. The worker
  that ends the run makes it overdue at once; looking again is for workers that die.
- ``sent`` for longer than dynbeat_resend_after: the broker forgot its queue, or the queue is long.
  Should both messages arrive, the guard lets one start.
- past its ``expires_after`` before its first start: recorded as expired instead.
- of a schedule that is paused by now: revoked. Of a task that is not allowed, or of a row that
  cannot be read: failed, and the schedule is set aside if the fault is its own.

Taking a run in hand pushes its ``overdue_at`` on, so two beats never publish the same one at once,
and a beat that dies in the middle leaves it to the next.
"""

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from celery_dynbeat.common import task_allowlist
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.models import Origin
from celery_dynbeat.planning.outgoing_run import OutgoingRun
from celery_dynbeat.planning.schedule_spec import max_run_time
from celery_dynbeat.store import due, overlaps, run_rows, runs
from celery_dynbeat.store.rows import Row, UnreadableRow, format_error

logger = logging.getLogger(__name__)


def take_overdue(
    session: Session,
    *,
    now: datetime,
    settings: Settings,
    since: datetime | None = None,
) -> tuple[int, list[OutgoingRun]]:
    """Return how many overdue runs were dealt with, and those of them to publish again.

    These are leased to this beat for dynbeat_dispatch_timeout.
    """
    limit = settings.batch_size
    orphans = runs.revoke_orphans(session, now=now, limit=limit, since=since)
    rows, damaged = runs.lock_overdue(session, now=now, limit=limit, since=since)
    _fail_damaged(session, damaged, now=now)
    paused = [row.id for row in rows if not row.enabled and row.origin != Origin.MANUAL]
    runs.revoke(session, paused, now=now, reason="the schedule was paused")
    left = [row for row in rows if row.id not in paused]
    overdue = _publishable(session, left, now=now, settings=settings)
    expired = {
        run.run_id for run in overdue if run.expires_at is not None and run.expires_at <= now
    }
    alive = [run for run in overdue if run.run_id not in expired]
    runs.mark_expired(session, sorted(expired), now=now)
    runs.lease(session, [run.run_id for run in alive], overdue_at=now + settings.dispatch_timeout)
    going = {run.run_id for run in alive}
    asking = [row for row in left if row.id in going]
    waiting = _waiting(session, asking, now=now, settings=settings)
    looked_at = orphans + len(rows) + len(damaged)
    return looked_at, [run for run in alive if run.run_id not in waiting]


def _publishable(
    session: Session, rows: Sequence[Row], *, now: datetime, settings: Settings
) -> list[OutgoingRun]:
    """Return the runs as they are sent; those that nobody may or can send are failed."""
    overdue: list[OutgoingRun] = []
    for row in rows:
        try:
            task_allowlist.check(settings, owner=row.owner, task=row.task)
            # What overlap asks of the row, below, is not to fail for all.
            max_run_time(row.max_run_time, settings)
            overdue.append(run_rows.recorded_outgoing_run(row, settings=settings))
        # A task that is not allowed by now, a duration beyond all dates: this run's trouble alone.
        except Exception as error:  # noqa: BLE001
            _give_up(session, row, error, now=now)
    return overdue


def _give_up(session: Session, row: Row, error: Exception, *, now: datetime) -> None:
    logger.error(
        "run %s is failed, and schedule %r of owner %r set aside: %s",
        row.id,
        row.name,
        row.owner,
        error,
        extra={"event": Event.RUN_UNPUBLISHABLE, "run_id": row.id},
    )
    runs.mark_unpublishable(session, run_id=row.id, now=now, error=str(error))
    due.quarantine(
        session, schedule_id=row.schedule_id, version=row.version, error=format_error(error)
    )


def _fail_damaged(session: Session, damaged: Sequence[UnreadableRow], *, now: datetime) -> None:
    """Fail runs that cannot be read, themselves or their schedules, which are set aside then."""
    if not damaged:
        return
    for damage in damaged:
        logger.error(
            "run %s is failed: %s",
            damage.id,
            damage,
            extra={"event": Event.RUN_UNPUBLISHABLE, "run_id": damage.id},
        )
        runs.mark_unpublishable(session, run_id=damage.id, now=now, error=str(damage))
    theirs = runs.schedule_ids_of(session, [damage.id for damage in damaged])
    due.quarantine_unreadable(session, due.lock_unreadable(session, schedule_ids=theirs))


def _waiting(
    session: Session, rows: Sequence[Row], *, now: datetime, settings: Settings
) -> set[str]:
    """Return the ids of the runs that wait for another run of their schedule to end."""
    buffered = [
        row
        for row in rows
        if (row.overlap or settings.overlap) == "buffer_one"
        and row.origin == Origin.SCHEDULE
        and row.sent_at is None
    ]
    others = overlaps.unfinished_runs(session, list({row.schedule_id for row in buffered}))
    return {row.id for row in buffered if _is_blocked(row, others, now, settings)}


def _is_blocked(row: Row, others: Iterable[Row], now: datetime, settings: Settings) -> bool:
    longest = max_run_time(row.max_run_time, settings)
    return any(
        other.schedule_id == row.schedule_id
        and other.id != row.id
        and (other.started_at is None or now - other.started_at < longest)
        # Of two that have not been sent, the older one goes first.
        and (other.sent_at is not None or other.scheduled_for < row.scheduled_for)
        for other in others
    )
