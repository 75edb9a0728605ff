"""Queries that delete old history."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.orm import Session

from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import RUNS, Run, Schedule
from celery_dynbeat.db.statements import in_index_order
from celery_dynbeat.db.types import MYSQL


@in_index_order
def read_page(session: Session, *, after: str, before: str, limit: int) -> Sequence[Row[Any]]:
    """Return up to ``limit`` runs with ids between ``after`` and ``before``, ordered by id.

    The columns of the schedule decide which runs stay; they are None if it was deleted. ``over_at``
    is the schedule's ``finished_at``.
    """
    statement: Any = (
        select(
            Run.id,
            Run.schedule_id,
            Run.scheduled_for,
            Run.origin,
            Run.finished_at,
            Schedule.last_run_at,
            Schedule.next_fire_at,
            Schedule.finished_at.label("over_at"),
        )
        .outerjoin(Schedule, Schedule.id == Run.schedule_id)
        .where(Run.id > after, Run.id < before)
        .order_by(Run.id)
        .limit(limit)
    )
    return session.execute(statement).all()


@in_index_order
def delete_finished(session: Session, ids: Sequence[str]) -> int:
    """Delete the runs that are finished, and return their number.

    Rows that another transaction has locked are skipped.
    """
    if not ids:
        return 0
    # Lock the rows first. Otherwise, two beats that delete the same rows would wait for each other.
    free = select(Run.id).where(Run.id.in_(ids), Run.finished_at.is_not(None))
    # InnoDB locks each row that it scans, and prefers to scan a small table. Another beat would
    # then skip rows that this beat does not delete.
    for dialect in MYSQL:
        free = free.with_hint(Run, "FORCE INDEX (PRIMARY)", dialect)
    locked = session.scalars(free.with_for_update(skip_locked=True)).all()
    if locked:
        capabilities_of(session.get_bind().dialect).delete(session.connection(), RUNS, locked)
    return len(locked)
