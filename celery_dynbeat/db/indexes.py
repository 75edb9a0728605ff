"""The indexes of the tables, and their character set on MySQL.

Only data definition imports this module. Queries name or imply their index, so beat and workers
import neither this module nor the dialects of databases that they do not use.
"""

from typing import Any

from sqlalchemy import ColumnElement, Index, and_

from celery_dynbeat.db.models import Backfill, Base, Run, Schedule
from celery_dynbeat.db.types import MYSQL

#: All tables with their indexes. A test compares the migrations with it.
METADATA = Base.metadata


def _partial(name: str, *columns: Any, where: ColumnElement[bool]) -> None:
    """Index the rows that match ``where``. MySQL has no partial indexes and indexes all rows."""
    Index(name, *columns, postgresql_where=where, sqlite_where=where)


# The claim reads the start of this index. It does not contain rows that can never be due.
_partial(
    "ix_dynbeat_schedule_due",
    Schedule.next_run_at,
    Schedule.id,
    where=Schedule.next_run_at.is_not(None),
)
# On MySQL the three columns select the few rows that match.
_partial(
    "ix_dynbeat_schedule_unplanned",
    Schedule.enabled,
    Schedule.finished_at,
    Schedule.next_run_at,
    where=and_(
        Schedule.enabled,
        Schedule.next_run_at.is_(None),
        Schedule.finished_at.is_(None),
        Schedule.error.is_(None),
    ),
)

Index("ix_dynbeat_run_owner_scheduled_for", Run.owner, Run.scheduled_for)
_partial("ix_dynbeat_run_overdue", Run.overdue_at, where=Run.overdue_at.is_not(None))
# Unfinished runs by schedule: overlap, cancel and the search for lost runs read them.
# Within a schedule the order is by id, and so by time: a query of very many runs gets the newest.
_partial(
    "ix_dynbeat_run_newest_unfinished",
    Run.finished_at,
    Run.schedule_id,
    Run.id,
    where=Run.finished_at.is_(None),
)
# A worker compares its unfinished runs with its pool.
_partial(
    "ix_dynbeat_run_worker",
    Run.worker,
    Run.finished_at,
    where=and_(Run.worker.is_not(None), Run.finished_at.is_(None)),
)
_partial("ix_dynbeat_run_retry_at", Run.retry_at, where=Run.retry_at.is_not(None))

Index("ix_dynbeat_backfill_newest", Backfill.schedule_id, Backfill.id)
_partial(
    "ix_dynbeat_backfill_next_run_at",
    Backfill.next_run_at,
    where=Backfill.next_run_at.is_not(None),
)

for _table in METADATA.tables.values():
    for _dialect in MYSQL:
        _table.dialect_kwargs[f"{_dialect}_charset"] = "utf8mb4"
