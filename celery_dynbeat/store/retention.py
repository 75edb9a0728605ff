"""Questions to the history that is old enough to go."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.orm import Session

from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.index_order import in_index_order
from celery_dynbeat.db.models import Run, Schedule
from celery_dynbeat.db.tables import RUNS
from celery_dynbeat.db.types import MYSQL


@in_index_order
def read_page(session: Session, *, after: str, before: str, limit: int) -> Sequence[Row[Any]]:
    """Return up to ``limit`` runs with ids between the two, in order, and what keeps them.

    ``last_run_at`` and ``next_fire_at`` are those of the schedule, None without one; ``over_at`` is
    when it fired for the last time that it ever will.
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
    """Delete those of the runs that have ended; one that another beat deletes is passed over."""
    if not ids:
        return 0
    # Locked first: two beats that delete the same rows would wait for each other.
    free = select(Run.id).where(Run.id.in_(ids), Run.finished_at.is_not(None))
    # InnoDB locks whatever it scans, and rather scans a small table than looks its rows up: another
    # beat would pass over what this one leaves alone.
    for dialect in MYSQL:
        free = free.with_hint(Run, "FORCE INDEX (PRIMARY)", dialect)
    locked = session.scalars(free.with_for_update(skip_locked=True)).all()
    if locked:
        capabilities_of(session.get_bind().dialect).delete(session.connection(), RUNS, locked)
    return len(locked)
