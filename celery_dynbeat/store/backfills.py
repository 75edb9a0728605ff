"""The queries of a backfill on the history."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, select, update
from sqlalchemy.orm import Session

from celery_dynbeat.common.run_states import Status
from celery_dynbeat.db import batches
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.index_order import in_index_order
from celery_dynbeat.db.models import REQUESTED_ORIGINS, Run
from celery_dynbeat.store import skips
from celery_dynbeat.store.runs import MAX_IN_LIST, execute_dml

#: The columns that say which fire times a history row represents.
_FIRE_TIME_COLUMNS: tuple[Any, ...] = (
    Run.id,
    Run.status,
    Run.scheduled_for,
    Run.fire_count,
    Run.error,
)


@in_index_order
def fire_times_with_run(
    session: Session, *, schedule_id: int, instants: Sequence[datetime]
) -> set[datetime]:
    """Return those of the fire times that have a run. Skipped rows do not count as runs."""
    sent = (Run.schedule_id == schedule_id, Run.status != Status.SKIPPED)
    at = Run.scheduled_for
    if capabilities_of(session.get_bind(Run).dialect).has_lateral:
        # LIMIT makes it a separate query. Otherwise PostgreSQL merges it into one query of the
        # whole history.
        of_one = select(at).where(*sent).limit(1)
        statement = batches.lateral_for_each(at, instants, lambda each: of_one.where(at == each))
    else:
        statement = select(at).where(*sent, at.in_(instants))
    return set(session.scalars(statement))


@in_index_order
def first_run_from(session: Session, *, schedule_id: int, instant: datetime) -> Row[Any] | None:
    """Return id, status, scheduled_for, fire_count and error of the first history row.

    The row is the first with ``scheduled_for`` at or after ``instant``. Manual runs and reruns are
    left out, because their instants are not fire times. Rows of ``skip()`` are left out, because
    they cover no other fire time. None if there is no row, or after MAX_IN_LIST rows of ``skip()``.
    """
    statement: Any = (
        select(*_FIRE_TIME_COLUMNS, skips.is_by_call().label("is_by_call"))
        .where(
            Run.schedule_id == schedule_id,
            Run.scheduled_for >= instant,
            Run.origin.not_in(REQUESTED_ORIGINS),
        )
        .order_by(Run.scheduled_for)
    )
    first = session.execute(statement.limit(1)).one_or_none()
    if first is None or not first.is_by_call:
        return first
    rows_from = session.execute(statement.limit(MAX_IN_LIST))
    return next((row for row in rows_from if not row.is_by_call), None)


def shrink_skipped(session: Session, *, run_id: str, fire_count: int) -> int:
    """Set the ``fire_count`` of a skipped row; delete the row if it is 0. Return the row count."""
    is_skipped = (Run.id == run_id, Run.status == Status.SKIPPED)
    if fire_count:
        return execute_dml(session, update(Run).where(*is_skipped).values(fire_count=fire_count))
    return execute_dml(session, delete(Run).where(*is_skipped))
