"""What beat has to do next, in one query that reads the fronts of four indexes."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import Select, bindparam, select, type_coerce
from sqlalchemy.orm import Session

from celery_dynbeat.db.types import UtcDateTime
from celery_dynbeat.store import backfills, due, rows, runs

#: What is committed so much later than its instant is found all the same.
IN_FLIGHT = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Watermark:
    """Instants before which a look found nothing due, and nothing overdue.

    What lies before them in the indexes is dead, and while somebody's transaction is open for long
    nobody can clear it away: a scan that begins here need not pass over it. Whatever is committed
    later with an earlier instant is found by a look without a watermark.
    """

    no_due_before: datetime | None = None
    no_overdue_before: datetime | None = None


NO_WATERMARK = Watermark()


@dataclass(frozen=True, slots=True)
class PendingWork:
    """The earliest of each kind of work; None where there is none.

    ``watermark`` is where the next look may begin.
    """

    next_run_at: datetime | None
    overdue_at: datetime | None
    unplanned: bool
    backfill_at: datetime | None
    watermark: Watermark = NO_WATERMARK

    def earliest(self) -> datetime | None:
        """Return when there is something to do, or None."""
        instants = (self.next_run_at, self.overdue_at, self.backfill_at)
        return min((at for at in instants if at is not None), default=None)


def read(
    session: Session, *, now: datetime, until: datetime, watermark: Watermark = NO_WATERMARK
) -> PendingWork:
    """Return the agenda as it stands at ``now``; of what is overdue, up to ``until``.

    When one of its instants cannot be read, what is due counts from ``now``, and what is not due is
    left out: those who take up what is due deal with such a row, and until then it is asleep.
    """
    answer = session.execute(
        _pending_statement(watermark != NO_WATERMARK), _values(until, watermark)
    )
    try:
        next_run_at, overdue_at, unplanned, backfill_at = answer.one()
    except rows.UNREADABLE:
        return _read_due_only(session, now)
    found = Watermark(_watermark_at(next_run_at, now), _watermark_at(overdue_at, now))
    return PendingWork(next_run_at, overdue_at, unplanned is not None, backfill_at, found)


def _watermark_at(instant: datetime | None, now: datetime) -> datetime:
    return (now if instant is None else min(instant, now)) - IN_FLIGHT


def _read_due_only(session: Session, now: datetime) -> PendingWork:
    # Ids alone, for no instant is to be read.
    ids = select(
        due.first_due_id(now=now),
        runs.first_overdue_id(now=now),
        due.first_unplanned_id(),
        backfills.first_due_id(now=now),
    )
    found = [now if each is not None else None for each in session.execute(ids).one()]
    next_run_at, overdue_at, unplanned, backfill_at = found
    return PendingWork(next_run_at, overdue_at, unplanned is not None, backfill_at)


def statement(*, until: datetime, watermark: Watermark = NO_WATERMARK) -> Select[Any]:
    """Return the statement of ``read``, for those who want to see its plan."""
    return _pending_statement(watermark != NO_WATERMARK).params(_values(until, watermark))


def _values(until: datetime, watermark: Watermark) -> dict[str, datetime | None]:
    return {"until": until, "due": watermark.no_due_before, "overdue": watermark.no_overdue_before}


# Made once for all passes.
@cache
def _pending_statement(in_part: bool) -> Select[Any]:  # noqa: FBT001 - the key of a cache
    until = bindparam("until", type_=UtcDateTime)
    due_since = bindparam("due", type_=UtcDateTime) if in_part else None
    overdue_since = bindparam("overdue", type_=UtcDateTime) if in_part else None
    return select(
        type_coerce(due.earliest_next_run_at(since=due_since), UtcDateTime),
        type_coerce(runs.earliest_overdue_at(since=overdue_since, until=until), UtcDateTime),
        due.first_unplanned_id(),
        type_coerce(backfills.earliest_next_run_at(), UtcDateTime),
    )
