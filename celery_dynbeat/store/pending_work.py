"""The next work of beat, in one query that reads the start of five indexes."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import Select, bindparam, select, type_coerce
from sqlalchemy.orm import Session

from celery_dynbeat.db.types import UtcDateTime
from celery_dynbeat.store import due, failing, holds, requests, rows, runs

#: A transaction may commit an instant this much later; reading from the watermark still finds it.
IN_FLIGHT = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Watermark:
    """Instants before which the last query found nothing due and nothing overdue.

    Before them the index contains only dead entries, which the database cannot remove while a long
    transaction is open. A scan that starts at the watermark does not read them. Only a query
    without a watermark finds an earlier instant that is committed later. None: not known.
    """

    no_due_before: datetime | None = None
    no_overdue_before: datetime | None = None


NO_WATERMARK = Watermark()


@dataclass(frozen=True, slots=True)
class PendingWork:
    """The earliest instant of each kind of work, None if there is none.

    During a hold of everything, ``next_run_at`` and ``request_at`` are not before its end, and
    ``is_held`` is true. The next query may start at ``watermark``. ``has_deferred``: schedules of
    ended runs must be corrected (``store.failing``).
    """

    next_run_at: datetime | None
    overdue_at: datetime | None
    unplanned: bool
    request_at: datetime | None
    watermark: Watermark = NO_WATERMARK
    is_held: bool = False
    has_deferred: bool = False

    def earliest(self) -> datetime | None:
        """Return the earliest instant at which beat has work, or None."""
        instants = (self.next_run_at, self.overdue_at, self.request_at)
        return min((at for at in instants if at is not None), default=None)


def read(
    session: Session, *, now: datetime, until: datetime, watermark: Watermark = NO_WATERMARK
) -> PendingWork:
    """Return the pending work at ``now``, with overdue runs up to ``until``.

    If one of the instants cannot be read, due work gets the instant ``now``, and later work is left
    out. The claim and the sweep quarantine the unreadable row once it is due.
    """
    has_watermark = watermark != NO_WATERMARK
    parameters = _parameters(now, until, watermark)
    result = session.execute(_pending_statement(has_watermark), parameters)
    try:
        row = result.one()
        next_run_at, overdue_at, unplanned, request_at, *others = row
        held_until, has_no_end, deferred_id = others
    except rows.UNREADABLE:
        return _read_due_only(session, now)
    reached = Watermark(_watermark_at(next_run_at, now), _watermark_at(overdue_at, now))
    held_until = holds.NEVER if has_no_end else held_until
    return PendingWork(
        next_run_at=_not_before(held_until, next_run_at),
        overdue_at=overdue_at,
        unplanned=unplanned is not None,
        request_at=_not_before(held_until, request_at),
        watermark=reached,
        is_held=held_until is not None,
        has_deferred=deferred_id is not None,
    )


def _not_before(held_until: datetime | None, instant: datetime | None) -> datetime | None:
    if held_until is None or instant is None:
        return instant
    return max(instant, held_until)


def _watermark_at(instant: datetime | None, now: datetime) -> datetime:
    return (now if instant is None else min(instant, now)) - IN_FLIGHT


def _read_due_only(session: Session, now: datetime) -> PendingWork:
    # Only ids: an instant among them cannot be read.
    ids = select(
        due.first_due_id(now=now),
        runs.first_overdue_id(now=now),
        due.first_unplanned_id(),
        requests.first_due_id(now=now),
        holds.everything_is_held(now),
    )
    *found, is_held = session.execute(ids).one()
    due_at = [now if each is not None else None for each in found]
    next_run_at, overdue_at, unplanned, request_at = due_at
    if is_held:
        next_run_at = request_at = None
    return PendingWork(
        next_run_at,
        overdue_at,
        unplanned is not None,
        request_at,
        is_held=bool(is_held),
    )


def statement(
    *, now: datetime, until: datetime, watermark: Watermark = NO_WATERMARK
) -> Select[Any]:
    """Return the statement of ``read``, for EXPLAIN."""
    has_watermark = watermark != NO_WATERMARK
    return _pending_statement(has_watermark).params(_parameters(now, until, watermark))


def _parameters(now: datetime, until: datetime, watermark: Watermark) -> dict[str, datetime | None]:
    return {
        "now": now,
        "until": until,
        "recent": now - failing.RECENT,
        "due": watermark.no_due_before,
        "overdue": watermark.no_overdue_before,
    }


# Cached: all passes use the same two statements.
@cache
def _pending_statement(has_watermark: bool) -> Select[Any]:  # noqa: FBT001 - a key of the cache
    now = bindparam("now", type_=UtcDateTime)
    until = bindparam("until", type_=UtcDateTime)
    due_since = bindparam("due", type_=UtcDateTime) if has_watermark else None
    overdue_since = bindparam("overdue", type_=UtcDateTime) if has_watermark else None
    return select(
        type_coerce(due.earliest_next_run_at(since=due_since), UtcDateTime),
        type_coerce(runs.earliest_overdue_at(since=overdue_since, until=until), UtcDateTime),
        due.first_unplanned_id(),
        type_coerce(requests.earliest_next_run_at(), UtcDateTime),
        type_coerce(holds.last_end_of_everything(now), UtcDateTime),
        holds.everything_is_held_without_end(),
        failing.first_deferred_id(now=now, since=bindparam("recent", type_=UtcDateTime)),
    )
