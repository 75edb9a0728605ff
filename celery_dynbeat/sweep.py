"""Runs that were recorded but never started: publish them again, under the same id.

- ``pending`` for longer than dynbeat_dispatch_timeout: beat died between the commit and the
  publish, the broker was away, or its answer was lost. A manual run is overdue from its birth.
- ``pending`` behind a run that has not ended, under ``overlap="buffer_one"``: put off. The worker
  that ends the run makes it overdue at once; looking again is for workers that die.
- ``sent`` for longer than dynbeat_resend_after: the broker forgot its queue, or the queue is long.
  Should both messages arrive, the guard lets one start.
- past its ``expires_after`` before its first start: recorded as expired instead.
- of a schedule that is paused by now: revoked. Of a task that is not allowed: failed.

Taking a run in hand pushes its ``overdue_at`` on, so two beats never publish the same one at once,
and a beat that dies in the middle leaves it to the next.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row
from sqlalchemy.orm import Session

from celery_dynbeat import allowed_tasks, records
from celery_dynbeat.db.models import Origin
from celery_dynbeat.errors import InvalidScheduleError
from celery_dynbeat.publish import Outgoing
from celery_dynbeat.rules import max_run_time
from celery_dynbeat.settings import Settings
from celery_dynbeat.store import overlaps, runs, schedules


def take_overdue(
    session: Session,
    *,
    now: datetime,
    settings: Settings,
) -> tuple[int, list[Outgoing]]:
    """Return how many overdue runs were dealt with, and those of them to publish again.

    These are leased to this beat for dynbeat_dispatch_timeout.
    """
    orphans = runs.revoke_orphans(session, now=now)
    rows = runs.lock_overdue(session, now=now, limit=settings.batch_size)
    paused = [row.id for row in rows if not row.enabled and row.origin != Origin.MANUAL]
    runs.revoke(session, paused, now=now, reason="the schedule was paused")
    forbidden = [row.id for row in rows if _refused(session, row, now=now, settings=settings)]
    gone = {*paused, *forbidden}
    overdue = [records.outgoing_again(row, settings=settings) for row in rows if row.id not in gone]
    expired = {
        run.run_id for run in overdue if run.expires_at is not None and run.expires_at <= now
    }
    alive = [run for run in overdue if run.run_id not in expired]
    runs.mark_expired(session, sorted(expired), now=now)
    runs.lease(session, [run.run_id for run in alive], overdue_at=now + settings.dispatch_timeout)
    waiting = _waiting(session, rows, now=now, settings=settings)
    return orphans + len(rows), [run for run in alive if run.run_id not in waiting]


def _refused(session: Session, row: Row[Any], *, now: datetime, settings: Settings) -> bool:
    """Return whether the schedule's task is not allowed, by now; then it is set aside."""
    try:
        allowed_tasks.check(settings, owner=row.owner, task=row.task)
    except InvalidScheduleError as error:
        runs.mark_unpublishable(session, run_id=row.id, now=now, error=str(error))
        text = f"{type(error).__name__}: {error}"
        schedules.set_aside(session, schedule_id=row.schedule_id, version=row.version, error=text)
        return True
    return False


def _waiting(
    session: Session, rows: Sequence[Row[Any]], *, now: datetime, settings: Settings
) -> set[str]:
    """Return the ids of the runs that wait for another run of their schedule to end."""
    buffered = [
        row
        for row in rows
        if (row.overlap or settings.overlap) == "buffer_one"
        and row.origin == Origin.SCHEDULE
        and row.sent_at is None
    ]
    others = overlaps.unfinished(session, list({row.schedule_id for row in buffered}))
    return {row.id for row in buffered if _is_blocked(row, others, now, settings)}


def _is_blocked(
    row: Row[Any], others: Iterable[Row[Any]], now: datetime, settings: Settings
) -> bool:
    longest = max_run_time(row.max_run_time, settings)
    return any(
        other.schedule_id == row.schedule_id
        and other.id != row.id
        and (other.started_at is None or now - other.started_at < longest)
        # Of two that have not been sent, the older one goes first.
        and (other.sent_at is not None or other.scheduled_for < row.scheduled_for)
        for other in others
    )
