"""Runs that were recorded but never started: publish them again, under the same id.

- ``pending`` for longer than dynbeat_dispatch_timeout: beat died between the commit and the
  publish, the broker was away, or its answer was lost. A manual run is overdue from its birth.
- ``sent`` for longer than dynbeat_resend_after: the broker forgot its queue, or the queue is long.
  Should both messages arrive, the guard lets one start.
- past its ``expires_after``: recorded as expired instead.

Taking a run in hand pushes its ``overdue_at`` on, so two beats never publish the same one at once,
and a beat that dies in the middle leaves it to the next.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import Row
from sqlalchemy.orm import Session

from celery_dynbeat.claim import expires_at
from celery_dynbeat.publish import Outgoing
from celery_dynbeat.settings import Settings
from celery_dynbeat.store import runs


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
    overdue = [
        _outgoing(row) for row in runs.lock_overdue(session, now=now, limit=settings.batch_size)
    ]
    expired = [
        run.run_id for run in overdue if run.expires_at is not None and run.expires_at <= now
    ]
    alive = [run for run in overdue if run.run_id not in set(expired)]
    runs.mark_expired(session, expired, now=now)
    runs.lease(session, [run.run_id for run in alive], overdue_at=now + settings.dispatch_timeout)
    return orphans + len(overdue), alive


def _outgoing(row: Row[Any]) -> Outgoing:
    return Outgoing(
        run_id=row.id,
        schedule_id=row.schedule_id,
        owner=row.owner,
        name=row.name,
        version=row.version,
        task=row.task,
        args=row.args,
        kwargs=row.kwargs,
        options=row.options,
        scheduled_for=row.scheduled_for,
        expires_at=expires_at(row.expires_after, created_at=row.created_at),
    )
