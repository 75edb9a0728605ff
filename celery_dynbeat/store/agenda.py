"""What beat has to do next, in one query that reads the fronts of four indexes."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, select, type_coerce
from sqlalchemy.orm import Session

from celery_dynbeat.db.types import UtcDateTime
from celery_dynbeat.store import backfills, rows, runs, schedules


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


def read(session: Session, *, now: datetime) -> Agenda:
    """Return the agenda as it stands at ``now``.

    When one of its instants cannot be read, what is due counts from ``now``, and what is not due is
    left out: those who take up what is due deal with such a row, and until then it is asleep.
    """
    answer = session.execute(statement())
    try:
        next_run_at, overdue_at, unplanned, backfill_at = answer.one()
    except rows.UNREADABLE:
        return _what_is_due(session, now)
    return Agenda(next_run_at, overdue_at, unplanned is not None, backfill_at)


def _what_is_due(session: Session, now: datetime) -> Agenda:
    # Ids alone, for no instant is to be read.
    ids = select(
        schedules.is_due(now=now),
        runs.is_overdue(now=now),
        schedules.has_unplanned(),
        backfills.is_due(now=now),
    )
    found = [now if each is not None else None for each in session.execute(ids).one()]
    next_run_at, overdue_at, unplanned, backfill_at = found
    return Agenda(next_run_at, overdue_at, unplanned is not None, backfill_at)


def statement() -> Select[Any]:
    """Return the statement of ``read``, for those who want to see its plan."""
    return select(
        type_coerce(schedules.earliest_due(), UtcDateTime),
        type_coerce(runs.earliest_overdue(), UtcDateTime),
        schedules.has_unplanned(),
        type_coerce(backfills.earliest(), UtcDateTime),
    )
