"""What the tables have beside columns and rules: indexes, and the character set of MySQL.

Data definition alone asks for it. Each statement names or implies its index, so beat and workers do
without this module, and without the dialects of the databases that they do not use.
"""

from typing import Any

from sqlalchemy import ColumnElement, Index, and_

from celery_dynbeat.db.models import Backfill, Base, Run, Schedule
from celery_dynbeat.db.types import MYSQL

#: The tables, whole: what a migration is compared with.
METADATA = Base.metadata


def _partial(name: str, *columns: Any, where: ColumnElement[bool]) -> None:
    """Index the rows that meet ``where``; MySQL, which has no partial indexes, indexes all."""
    Index(name, *columns, postgresql_where=where, sqlite_where=where)


# The claim reads from the front of this one; rows that can never be due are not in it.
_partial(
    "ix_dynbeat_schedule_due",
    Schedule.next_run_at,
    Schedule.id,
    where=Schedule.next_run_at.is_not(None),
)
# On MySQL the three columns lead to the few rows that match.
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
# What may still change, by schedule: overlap, cancel and the search for lost runs ask for it.
# Within a schedule by id, which is by time: the newest come first where there are very many.
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
