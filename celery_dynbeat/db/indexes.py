"""What the tables have beside columns and rules: indexes, and the character set of MySQL.

Data definition alone asks for it. Each statement names or implies its index, so beat and workers do
without this module, and without the dialects of the databases that they do not use.
"""

from sqlalchemy import Index, and_

from celery_dynbeat.db.models import Backfill, Base, Run, Schedule
from celery_dynbeat.db.types import MYSQL

#: The tables, whole: what a migration is compared with.
METADATA = Base.metadata

_due = Schedule.next_run_at.is_not(None)
_unplanned = and_(
    Schedule.enabled,
    Schedule.next_run_at.is_(None),
    Schedule.finished_at.is_(None),
    Schedule.error.is_(None),
)
# The claim reads from the front of this one; rows that can never be due are not in it.
Index(
    "ix_dynbeat_schedule_due",
    Schedule.next_run_at,
    Schedule.id,
    postgresql_where=_due,
    sqlite_where=_due,
)
# MySQL has no partial indexes: there the three columns lead to the few rows that match.
Index(
    "ix_dynbeat_schedule_unplanned",
    Schedule.enabled,
    Schedule.finished_at,
    Schedule.next_run_at,
    postgresql_where=_unplanned,
    sqlite_where=_unplanned,
)

Index("ix_dynbeat_run_owner_scheduled_for", Run.owner, Run.scheduled_for)

_overdue = Run.overdue_at.is_not(None)
Index(
    "ix_dynbeat_run_overdue",
    Run.overdue_at,
    postgresql_where=_overdue,
    sqlite_where=_overdue,
)

# What may still change, by schedule: overlap, cancel and the search for lost runs ask for it.
_unfinished = Run.finished_at.is_(None)
Index(
    "ix_dynbeat_run_unfinished",
    Run.finished_at,
    Run.schedule_id,
    postgresql_where=_unfinished,
    sqlite_where=_unfinished,
)

_retrying = Run.retry_at.is_not(None)
Index(
    "ix_dynbeat_run_retry_at",
    Run.retry_at,
    postgresql_where=_retrying,
    sqlite_where=_retrying,
)

Index("ix_dynbeat_backfill_schedule_id", Backfill.schedule_id)

_going_on = Backfill.next_run_at.is_not(None)
Index(
    "ix_dynbeat_backfill_next_run_at",
    Backfill.next_run_at,
    postgresql_where=_going_on,
    sqlite_where=_going_on,
)

for _table in METADATA.tables.values():
    for _dialect in MYSQL:
        _table.dialect_kwargs[f"{_dialect}_charset"] = "utf8mb4"
