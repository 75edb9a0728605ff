"""What beat has to do next, in one query that reads the fronts of four indexes."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, select, type_coerce
from sqlalchemy.orm import Session

from celery_dynbeat.db.types import UtcDateTime
from celery_dynbeat.store import backfills, runs, schedules


@dataclass(frozen=True, slots=True)
class Agenda:
    """The earliest of each kind of work; None where there is none."""

    next_run_at: datetime | None
    overdue_at: datetime | None
    unplanned: bool
    backfill_at: datetime | None

    def earliest(self) -> datetime | None:
        """Return when there is something to do, or None."""
        instants = (self.next_run_at, self.overdue_at, self.backfill_at)
        return min((at for at in instants if at is not None), default=None)


def read(session: Session) -> Agenda:
    """Return the agenda as it stands."""
    next_run_at, overdue_at, unplanned, backfill_at = session.execute(statement()).one()
    return Agenda(next_run_at, overdue_at, unplanned is not None, backfill_at)


def statement() -> Select[Any]:
    """Return the statement of ``read``, for those who want to see its plan."""
    return select(
        type_coerce(schedules.earliest_due(), UtcDateTime),
        type_coerce(runs.earliest_overdue(), UtcDateTime),
        schedules.has_unplanned(),
        type_coerce(backfills.earliest(), UtcDateTime),
    )
