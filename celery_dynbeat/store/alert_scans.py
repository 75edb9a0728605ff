"""Windows of schedules that are overdue and of runs that have not ended, for alerts.

Each query reads up to a limit of rows in the order of an index, after a key. No row is locked.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import literal, select
from sqlalchemy.orm import Session

from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.index_order import force_index, in_index_order
from celery_dynbeat.db.tables import RUNS, SCHEDULES
from celery_dynbeat.store import holds
from celery_dynbeat.store.due import DUE_INDEX
from celery_dynbeat.store.rows import Row, read
from celery_dynbeat.store.runs import UNFINISHED_INDEX

_SCHEDULE, _RUN = SCHEDULES.c, RUNS.c

#: The next_run_at and the id of a schedule; the schedule id and the id of a run.
OverdueKey = tuple[datetime, int]
RunKey = tuple[int, str]


class Window(NamedTuple):
    """The rows of a window, and whether there may be more after it."""

    rows: Sequence[Row]
    is_full: bool


@in_index_order
def overdue_schedules(
    session: Session, *, before: datetime, after: OverdueKey | None, limit: int
) -> Window:
    """Return id, owner and next_run_at of schedules that were due before an instant."""
    columns = (_SCHEDULE.next_run_at, _SCHEDULE.id)
    statement = force_index(select(*columns, _SCHEDULE.owner), SCHEDULES, DUE_INDEX)
    statement = statement.where(columns[0].is_not(None), columns[0] < before)
    if after is not None:
        row_after = capabilities_of(session.get_bind().dialect).row_after
        statement = statement.where(row_after(columns, after))
    found = read(session, statement.order_by(*columns).limit(limit), key=_SCHEDULE.id)
    return Window(found.rows, len(found.rows) + len(found.unreadable) >= limit)


@in_index_order
def unfinished_runs(session: Session, *, after: RunKey | None, limit: int) -> Window:
    """Return unfinished runs in the order of their schedules: status and instants."""
    capabilities = capabilities_of(session.get_bind().dialect)
    columns = (_RUN.schedule_id, _RUN.id)
    instants = (_RUN.created_at, _RUN.sent_at, _RUN.started_at)
    statement = force_index(select(*columns, _RUN.status, *instants), RUNS, UNFINISHED_INDEX)
    statement = statement.where(_RUN.finished_at.is_(None), _RUN.schedule_id.is_not(None))
    if after is not None:
        schedule_id, run_id = after
        # PostgreSQL compares no uuid with text.
        key = (schedule_id, literal(run_id, _RUN.id.type))
        statement = statement.where(capabilities.row_after(columns, key))
    fixed = (_RUN.finished_at,) if capabilities.orders_by_fixed_columns else ()
    found = read(session, statement.order_by(*fixed, *columns).limit(limit), key=_RUN.id)
    return Window(found.rows, len(found.rows) + len(found.unreadable) >= limit)


def is_everything_held(session: Session, *, now: datetime) -> bool:
    """Return whether a hold of everything is in force."""
    return bool(session.scalar(select(holds.everything_is_held(now))))


def held_owners(session: Session, owners: Sequence[str], *, now: datetime) -> Any:
    """Return those of the owners that have a hold in force."""
    return holds.ends_of(session, owners, now=now).keys() if owners else ()
