"""Questions about the runs of a schedule that have not ended, for its overlap policy."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, select, update
from sqlalchemy.orm import Session

from celery_dynbeat.db.models import Run, Status
from celery_dynbeat.store.runs import IN_LIST, affected, revoke_unstarted


def unfinished(session: Session, schedule_ids: Sequence[int]) -> Sequence[Row[Any]]:
    """Return id, schedule_id, scheduled_for, sent_at, started_at of the runs that may still end."""
    found: list[Row[Any]] = []
    for start in range(0, len(schedule_ids), IN_LIST):
        statement: Any = select(
            Run.id, Run.schedule_id, Run.scheduled_for, Run.sent_at, Run.started_at
        ).where(
            Run.finished_at.is_(None), Run.schedule_id.in_(schedule_ids[start : start + IN_LIST])
        )
        found += session.execute(statement).all()
    return found


def replace(session: Session, schedule_ids: Sequence[int], *, now: datetime) -> list[str]:
    """Revoke what has not started of the schedules, for a newer run; return what is in progress."""
    if not schedule_ids:
        return []
    reason = "overlap: a newer run took its place"
    revoke_unstarted(session, schedule_ids=schedule_ids, now=now, reason=reason)
    # What a worker started just before the revocation is found here.
    return [run.id for run in unfinished(session, schedule_ids)]


def release(session: Session, *, run_id: str, now: datetime) -> int:
    """Make the run that waits behind ``run_id`` overdue, so that beat sends it at once."""
    schedule_id = session.scalar(select(Run.schedule_id).where(Run.id == run_id))
    statement = (
        update(Run)
        .where(
            Run.schedule_id == schedule_id,
            Run.finished_at.is_(None),
            Run.status == Status.PENDING,
            Run.sent_at.is_(None),
            Run.overdue_at > now,
        )
        .values(overdue_at=now)
    )
    return affected(session, statement)
