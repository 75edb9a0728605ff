"""Locks on the runs that a call cancels. ``runs.revoke`` is the transition.

Runs are locked by id, so that two calls do not wait for each other. Their schedules are not locked.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.orm import Session

from celery_dynbeat.common.run_states import REVOKE
from celery_dynbeat.db.index_order import force_index, in_index_order
from celery_dynbeat.db.models import Run


@in_index_order
def lock(session: Session, *, run_id: str, owner: str | None) -> Run | None:
    """Return a run of ``owner``, locked for this transaction, or None. ``owner`` None means any."""
    statement = select(Run).where(Run.id == run_id)
    if owner is not None:
        statement = statement.where(Run.owner == owner)
    latest = statement.with_for_update().execution_options(populate_existing=True)
    return session.scalars(latest).one_or_none()


@in_index_order
def lock_many(session: Session, ids: Sequence[str]) -> Sequence[Row[Any]]:
    """Return id, schedule_id, owner and name of those of the runs that can be cancelled, locked."""
    statement: Any = (
        select(Run.id, Run.schedule_id, Run.owner, Run.name)
        .where(Run.id.in_(ids), Run.status.in_(REVOKE.sources))
        .order_by(Run.id)
        .with_for_update()
    )
    return session.execute(force_index(statement, Run, "PRIMARY")).all()
