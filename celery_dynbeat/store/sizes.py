"""The sizes of the tables, and how many of their rows retention will delete."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from celery_dynbeat.common.run_ids import first_run_id
from celery_dynbeat.db.models import CHANGES, RUNS, Base
from celery_dynbeat.db.statements import capabilities_in, connection_of

#: Rows that are counted at most.
MAX_COUNTED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """The size of a table with its indexes.

    - ``rows`` is approximate unless ``exact`` is true. None means that the database has not
      counted them yet.
    - ``bytes`` is None if the database does not know it.
    - ``old_rows`` is how many rows are older than ``retention``, at most MAX_COUNTED + 1; None for
      a table without retention. The last run of each schedule stays.
    """

    name: str
    rows: int | None
    exact: bool
    bytes: int | None
    retention: timedelta | None = None
    old_rows: int | None = None


def read(
    session: Session, *, now: datetime, history: timedelta, audit: timedelta
) -> Sequence[TableSize]:
    """Return the size of each table, by name. ``history`` and ``audit`` are the retentions."""
    capabilities, connection = capabilities_in(session), connection_of(session)
    old: dict[Any, tuple[timedelta, Any]] = {
        RUNS: (history, (RUNS.c.id < first_run_id(now - history), RUNS.c.finished_at.is_not(None))),
        CHANGES: (audit, (CHANGES.c.changed_at < now - audit,)),
    }
    found = []
    for table in sorted(Base.metadata.tables.values(), key=lambda each: each.name):
        size = capabilities.size_of(connection, table)
        retention, conditions = old.get(table, (None, None))
        old_rows = None
        if conditions is not None:
            few = select(table.c.id).where(*conditions).limit(MAX_COUNTED + 1).subquery()
            old_rows = session.scalar(select(func.count()).select_from(few))
        found.append(
            TableSize(
                name=table.name,
                rows=size.rows,
                exact=capabilities.embedded,
                bytes=size.bytes,
                retention=retention,
                old_rows=old_rows,
            )
        )
    return found
