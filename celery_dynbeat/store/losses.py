"""Questions about runs that went wrong: those whose worker is gone, and failures in a row."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, and_, or_, select, update
from sqlalchemy.orm import Session

from celery_dynbeat.db.models import Node, NodeKind, Run, Schedule, Status
from celery_dynbeat.store.runs import affected


def lock_lost(session: Session, *, silent_since: datetime, limit: int) -> Sequence[Row[Any]]:
    """Return up to ``limit`` running runs whose worker is gone, with what decides their fate.

    Gone is a node whose name another process took since, or one of which nothing was heard after
    ``silent_since``. The rows are locked; rows that another beat has locked are skipped.
    """
    replaced = Node.started_at > Run.started_at
    silent = and_(
        Run.started_at <= silent_since,
        or_(Node.name.is_(None), Node.seen_at <= silent_since, Node.stopped_at <= silent_since),
    )
    statement: Any = (
        select(Run.id, Run.schedule_id, Run.worker, Run.origin, Schedule.on_lost, Schedule.enabled)
        .outerjoin(Node, and_(Node.kind == NodeKind.WORKER, Node.name == Run.worker))
        .outerjoin(Schedule, Schedule.id == Run.schedule_id)
        .where(Run.finished_at.is_(None), Run.status == Status.RUNNING, or_(replaced, silent))
        .limit(limit)
        .with_for_update(skip_locked=True, of=Run)
    )
    return session.execute(statement).all()


def mark_lost(session: Session, ids: Sequence[str], *, now: datetime) -> int:
    """Move running runs to lost."""
    if not ids:
        return 0
    statement = (
        update(Run)
        .where(Run.id.in_(ids), Run.status == Status.RUNNING)
        .values(status=Status.LOST, finished_at=now, error="its worker is gone")
    )
    return affected(session, statement)


def rerun(session: Session, ids: Sequence[str], *, now: datetime) -> int:
    """Move running runs back to pending: beat sends them again, for a new attempt."""
    if not ids:
        return 0
    statement = (
        update(Run)
        .where(Run.id.in_(ids), Run.status == Status.RUNNING)
        .values(status=Status.PENDING, overdue_at=now, started_at=None, error="its worker was gone")
    )
    return affected(session, statement)


def latest_ends(session: Session, *, schedule_id: int, limit: int) -> Sequence[Row[Any]]:
    """Return status, finished_at and error of the last runs that were tried, newest first."""
    statement: Any = (
        select(Run.status, Run.finished_at, Run.error)
        .where(
            Run.schedule_id == schedule_id,
            Run.status.in_((Status.SUCCEEDED, Status.FAILED, Status.LOST)),
        )
        .order_by(Run.scheduled_for.desc())
        .limit(limit)
    )
    return session.execute(statement).all()
