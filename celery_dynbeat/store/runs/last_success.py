"""The last success of a schedule before one of its runs."""

from datetime import datetime
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from celery_dynbeat.db.statements import force_index, in_index_order
from celery_dynbeat.store.runs import FIRE_TIME_INDEX

#: Rows of history in which the first query searches. Most schedules succeeded in one of them.
FIRST_ROWS = 100
#: The number of rows of history that the second query searches, which is a week of failures at one
#: per minute.
MAX_ROWS = 10_000


@in_index_order
def read(session: Session, *, run_id: str, before: datetime) -> datetime | None:
    """Return the newest fire time ``before`` an instant whose run succeeded, or None.

    The run ``run_id`` belongs to the schedule. The search covers MAX_ROWS rows of its history.
    """
    for limit in (FIRST_ROWS, MAX_ROWS):
        found: datetime | None = session.scalar(_statement(run_id, before=before, limit=limit))
        if found is not None:
            return found
    return None


def _statement(run_id: str, *, before: datetime, limit: int) -> Select[Any]:
    schedule_id = select(Run.schedule_id).where(Run.id == run_id).scalar_subquery()
    newest = (
        force_index(select(Run.scheduled_for, Run.nominal_at, Run.status), Run, FIRE_TIME_INDEX)
        .where(Run.schedule_id == schedule_id, Run.scheduled_for < before)
        .order_by(Run.scheduled_for.desc())
        .limit(limit)
        .subquery()
    )
    # scheduled_for of a rerun is not its fire time.
    return (
        select(func.coalesce(newest.c.nominal_at, newest.c.scheduled_for))
        .where(newest.c.status == Status.SUCCEEDED)
        .order_by(newest.c.scheduled_for.desc())
        .limit(1)
    )
