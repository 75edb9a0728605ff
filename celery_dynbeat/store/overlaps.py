"""Questions about the runs of a schedule that have not ended, for its overlap policy."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from celery_dynbeat.db.models import Run
from celery_dynbeat.states import Status
from celery_dynbeat.store.rows import Row, read
from celery_dynbeat.store.runs import IN_LIST, UNFINISHED_ORDER, affected, revoke_unstarted

#: Why a run was cancelled for a newer one.
REPLACED = "overlap: a newer run took its place"


def unfinished(session: Session, schedule_ids: Sequence[int]) -> Sequence[Row]:
    """Return the runs of the schedules that may still end, with what overlap asks of them.

    One that cannot be read stands in nobody's way.
    """
    found: list[Row] = []
    for start in range(0, len(schedule_ids), IN_LIST):
        statement: Any = select(
            Run.id, Run.schedule_id, Run.scheduled_for, Run.origin, Run.sent_at, Run.started_at
        ).where(
            Run.finished_at.is_(None), Run.schedule_id.in_(schedule_ids[start : start + IN_LIST])
        )
        found += read(session, statement, key=Run.id).rows
    return found


def replace(
    session: Session, schedule_ids: Sequence[int], *, by: Sequence[str], now: datetime
) -> list[str]:
    """Cancel the unfinished runs of the schedules, save those in ``by``, which take their place.

    What has not started is revoked. What runs is marked, so that nobody begins it again. Returns
    the runs that were marked now: their workers are to be asked to end them.
    """
    if not schedule_ids:
        return []
    revoke_unstarted(session, schedule_ids=schedule_ids, now=now, reason=REPLACED, without=by)
    # What a worker started just before the revocation is found here.
    running = (
        Run.finished_at.is_(None),
        Run.schedule_id.in_(schedule_ids),
        Run.status == Status.RUNNING,
    )
    mark = update(Run).where(*running, Run.cancelled_at.is_(None)).values(cancelled_at=now)
    affected(session, mark)
    return list(session.scalars(select(Run.id).where(*running, Run.cancelled_at == now)))


def cancelled(session: Session, *, before: datetime, limit: int) -> Sequence[str]:
    """Return the runs that were asked to end ``before`` an instant, and have not yet.

    Without those that ``note_not_ended`` has noted.
    """
    statement = select(Run.id).where(
        Run.finished_at.is_(None),
        Run.status == Status.RUNNING,
        Run.cancelled_at <= before,
        Run.error.is_(None),
    )
    return session.scalars(statement.order_by(*UNFINISHED_ORDER).limit(limit)).all()


def note_not_ended(session: Session, *, run_ids: Sequence[str], reason: str) -> bool:
    """Write on runs in progress, which a newer one replaced, why they could not be ended."""
    statement = (
        update(Run)
        .where(
            Run.id.in_(run_ids),
            Run.status == Status.RUNNING,
            Run.cancelled_at.is_not(None),
            Run.error.is_(None),
        )
        .values(error=reason)
    )
    return affected(session, statement) > 0


def release(session: Session, *, run_id: str, now: datetime) -> int:
    """Make the run that waits behind ``run_id`` overdue, so that beat sends it at once."""
    schedule_id = session.scalar(select(Run.schedule_id).where(Run.id == run_id))
    statement = (
        update(Run)
        .where(
            Run.finished_at.is_(None),
            Run.schedule_id == schedule_id,
            Run.status == Status.PENDING,
            Run.sent_at.is_(None),
        )
        .values(overdue_at=now)
    )
    return affected(session, statement)
