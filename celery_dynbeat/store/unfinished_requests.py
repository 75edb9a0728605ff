"""Backfills and requests of rerun_many() that beat has not finished."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from celery_dynbeat.db.index_order import in_index_order
from celery_dynbeat.db.models import Backfill, Rerun, Schedule


@in_index_order
def backfills(session: Session, *, limit: int) -> Sequence[tuple[Backfill, Schedule]]:
    """Return up to ``limit`` unfinished backfills with their schedules, by ``next_run_at``."""
    first: Any = (
        select(Backfill.id)
        .where(Backfill.next_run_at.is_not(None))
        .order_by(Backfill.next_run_at)
        .limit(limit)
        .subquery()
    )
    statement = (
        select(Backfill, Schedule)
        .join(first, first.c.id == Backfill.id)
        .join(Schedule, Schedule.id == Backfill.schedule_id)
    )
    found = [(backfill, schedule) for backfill, schedule in session.execute(statement)]
    return sorted(found, key=lambda row: row[0].id)


@in_index_order
def reruns(session: Session, *, limit: int) -> Sequence[Rerun]:
    """Return up to ``limit`` unfinished requests of rerun_many(), the oldest first."""
    statement = (
        select(Rerun).where(Rerun.next_run_at.is_not(None)).order_by(Rerun.next_run_at).limit(limit)
    )
    return sorted(session.scalars(statement).all(), key=lambda row: row.id)
