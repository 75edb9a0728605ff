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
    later with an earlier instant is found by a look without a front.
    """

    due: datetime | None = None
    overdue: datetime | None = None


NO_WATERMARK = Watermark()


@dataclass(frozen=True, slots=True)
class PendingWork:
    """The earliest of each kind of work; None where there is none.

    ``front`` is where the next look may begin.
    """

    next_run_at: datetime | None
    overdue_at: datetime | None
    unplanned: bool
    backfill_at: datetime | None
    front: Watermark = NO_WATERMARK

    def earliest(self) -> datetime | None:
        """Return when there is something to do, or None."""
        instants = (self.next_run_at, self.overdue_at, self.backfill_at)
        return min((at for at in instants if at is not None), default=None)


def read(
    session: Session, *, now: datetime, until: datetime, front: Watermark = NO_WATERMARK
) -> PendingWork:
    """Return the agenda as it stands at ``now``; of what is overdue, up to ``until``.

    When one of its instants cannot be read, what is due counts from ``now``, and what is not due is
    left out: those who take up what is due deal with such a row, and until then it is asleep.
    """
    answer = session.execute(_look(front != NO_WATERMARK), _values(until, front))
    try:
        next_run_at, overdue_at, unplanned, backfill_at = answer.one()
    except rows.UNREADABLE:
        return _what_is_due(session, now)
    found = Watermark(_front(next_run_at, now), _front(overdue_at, now))
    return PendingWork(next_run_at, overdue_at, unplanned is not None, backfill_at, found)


def _front(instant: datetime | None, now: datetime) -> datetime:
    return (now if instant is None else min(instant, now)) - IN_FLIGHT


def _what_is_due(session: Session, now: datetime) -> PendingWork:
    # Ids alone, for no instant is to be read.
    ids = select(
        due.is_due(now=now),
        runs.is_overdue(now=now),
        due.has_unplanned(),
        backfills.is_due(now=now),
    )
    found = [now if each is not None else None for each in session.execute(ids).one()]
    next_run_at, overdue_at, unplanned, backfill_at = found
    return PendingWork(next_run_at, overdue_at, unplanned is not None, backfill_at)


def statement(*, until: datetime, front: Watermark = NO_WATERMARK) -> Select[Any]:
    """Return the statement of ``read``, for those who want to see its plan."""
    return _look(front != NO_WATERMARK).params(_values(until, front))


def _values(until: datetime, front: Watermark) -> dict[str, datetime | None]:
    return {"until": until, "due": front.due, "overdue": front.overdue}


# Made once for all passes.
@cache
def _look(in_part: bool) -> Select[Any]:  # noqa: FBT001 - the key of a cache
    until = bindparam("until", type_=UtcDateTime)
    due_since = bindparam("due", type_=UtcDateTime) if in_part else None
    overdue_since = bindparam("overdue", type_=UtcDateTime) if in_part else None
    return select(
        type_coerce(due.earliest_due(since=due_since), UtcDateTime),
        type_coerce(runs.earliest_overdue(since=overdue_since, until=until), UtcDateTime),
        due.has_unplanned(),
        type_coerce(backfills.earliest(), UtcDateTime),
    )
