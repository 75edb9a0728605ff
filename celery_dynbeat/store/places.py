"""Queries on places: the runs that count for ``max_running``, and those that wait for a place.

A run of an owner with a limit has a ``running_key``. It has a place while it is unfinished, unless
it waits:

- for a place: ``pending`` without ``overdue_at``, and ``waited_for`` is "place", or "previous" if
  it has to wait for another run of its schedule as well;
- for its turn in a batch, the end of a hold, of quiet hours or of the previous run, or until an
  instant that its task has set;
- for a retry that the sweep sends: ``retrying`` with ``overdue_at``. Celery sends its own retries
  without asking, so a run that waits for one of these keeps its place.

Each statement reads ranges of ``ix_dynbeat_run_place``, whose first column is the status. So it
reads no history, and no runs without a key. The index is partial where the database has partial
indexes.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    and_,
    case,
    func,
    literal,
    null,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.orm import Session

from celery_dynbeat.common.states import MIN_LATE, WITHOUT_PLACE, Status
from celery_dynbeat.db import statements
from celery_dynbeat.db.models import Run, Schedule
from celery_dynbeat.db.statements import capabilities_in
from celery_dynbeat.db.types import UtcDateTime, seconds_between
from celery_dynbeat.store import lock_row
from celery_dynbeat.store.runs import (
    MAX_IN_LIST,
    UNFINISHED_ORDER,
    UNSTARTED_RUN,
    WAITS,
    any_hold,
    columns_of,
    execute_dml,
    lock_free,
)

#: Waiting runs that are counted.
MAX_COUNTED = 10_000
#: The name of the row that a beat locks before it gives places.
_LOCK = "places"

_UNFINISHED = (Run.running_key.is_not(None), Run.finished_at.is_(None))
#: One range of the index for each condition.
_HAVE_PLACE = (
    Run.status.in_((Status.SENT, Status.RUNNING)),
    and_(
        Run.status == Status.PENDING,
        Run.overdue_at.is_not(None),
        or_(
            Run.waited_for.is_(None),
            Run.waited_for.not_in(WITHOUT_PLACE),
            Run.ready_at.is_not(None),
        ),
    ),
    and_(Run.status == Status.RETRYING, Run.overdue_at.is_(None)),
)


def _queue(session: Session) -> Sequence[Any]:
    """Return the order of the waiting runs: by key, the oldest first.

    ``overdue_at`` is NULL. PostgreSQL uses the order of the index only with this column, and
    MariaDB only without it.
    """
    has_partial = capabilities_in(session).has_partial_indexes
    return (Run.running_key, Run.overdue_at, Run.id) if has_partial else (Run.running_key, Run.id)


def lock(session: Session) -> bool:
    """Lock the queues for this transaction. Return False if another beat has locked them."""
    return lock_row(session, _LOCK)


class WaitingRun(NamedTuple):
    """A run that waits for a place, with what decides about it.

    ``sent_at`` is set if the run waits before a further attempt. ``schedule_id`` is None if its
    schedule was deleted.
    """

    id: str
    running_key: str
    owner: str
    name: str
    status: str
    attempt: int
    created_at: datetime
    fire_at: datetime
    sent_at: datetime | None
    origin: str
    schedule_id: int | None
    overlap: str | None
    max_run_time: float | None
    is_quarantined: bool
    ignores_quiet_hours: bool
    quiet_hours: str | None
    any_hold: bool


_COLUMNS = columns_of(
    WaitingRun,
    Run,
    Schedule,
    is_quarantined=Schedule.error.is_not(None),
    any_hold=any_hold(),
)


def page(session: Session, *, after: str, limit: int) -> Sequence[WaitingRun]:
    """Return up to ``limit`` waiting runs of the keys above ``after``, by key, oldest first."""
    return _first_waiting(session, Run.running_key > after, limit=limit)


def oldest(session: Session, *, key: str, limit: int) -> Sequence[WaitingRun]:
    """Return the oldest waiting runs of a key."""
    return _first_waiting(session, Run.running_key == key, limit=limit)


def _first_waiting(
    session: Session, keys: ColumnElement[bool], *, limit: int
) -> Sequence[WaitingRun]:
    waiting: Any = select(*_COLUMNS)
    waiting = waiting.outerjoin(Schedule, Schedule.id == Run.schedule_id).where(WAITS, keys)
    first = waiting.order_by(*_queue(session)).limit(limit)
    return [WaitingRun(*row) for row in session.execute(first)]


def in_use(session: Session, keys: Collection[str]) -> Counter[str]:
    """Return the number of places in use by key."""
    counts: Counter[str] = Counter()
    for part in statements.in_parts(sorted(keys), MAX_IN_LIST):
        # One statement, because several would not count a run that is sent meanwhile.
        ranges = [
            select(Run.running_key, func.count())
            .where(*_UNFINISHED, condition, Run.running_key.in_(part))
            .group_by(Run.running_key)
            for condition in _HAVE_PLACE
        ]
        rows: Sequence[Any] = session.execute(union_all(*ranges)).all()
        for key, number in rows:
            counts[key] += number
    return counts


def expired(session: Session, *, now: datetime, default: float | None, limit: int) -> Sequence[str]:
    """Return waiting runs that have expired, at most ``limit``. It reads all waiting runs.

    A run of a batch does not expire while it waits. ``default`` is the ``expires_after`` of a
    schedule without its own, in seconds.
    """
    longest = func.coalesce(Schedule.expires_after, default)
    found = select(Run.id)
    found = found.join(Schedule, Schedule.id == Run.schedule_id).where(
        WAITS, UNSTARTED_RUN, Run.batch_id.is_(None)
    )
    age = seconds_between(Run.created_at, literal(now, UtcDateTime()))
    return session.scalars(
        found.where(age >= longest).order_by(*_queue(session)).limit(limit)
    ).all()


def lock_waiting(session: Session, run_ids: Sequence[str]) -> set[str]:
    """Lock the runs that still wait, without those that others have locked; return their ids."""
    free: set[str] = set()
    for part in statements.in_parts(run_ids, MAX_IN_LIST):
        locked = lock_free(session, part)
        still = select(Run.id).where(Run.id.in_(locked), WAITS)
        free.update(session.scalars(still) if locked else ())
    return free


def give(session: Session, run_ids: Sequence[str], *, now: datetime, counts: bool) -> None:
    """Give places to locked waiting runs: they are overdue, so the sweep publishes them.

    If ``counts`` is false, no limit applies to them any more. The wait of a first attempt is not
    recorded if it was shorter than a delay that counts as late.
    """
    is_first = and_(Run.sent_at.is_(None), Run.batch_id.is_(None))
    is_short = and_(is_first, Run.created_at > now - MIN_LATE)
    values: dict[str, Any] = {
        "overdue_at": now,
        "waited_for": case((is_short, null()), else_=Run.waited_for),
        "ready_at": case((is_short, null()), else_=now),
    }
    if not counts:
        values["running_key"] = None
    for part in statements.in_parts(run_ids, MAX_IN_LIST):
        execute_dml(session, update(Run).where(Run.id.in_(part)).values(**values))


def set_keys(session: Session, keys: Mapping[str, str]) -> Counter[str]:
    """Store the present keys, by owner, in unfinished runs that have another key or none.

    Return, by key, the number of runs that another transaction has locked, and that therefore do
    not change. It reads all unfinished runs.
    """
    others: dict[str, list[str]] = {}
    for part in statements.in_parts(sorted(keys), MAX_IN_LIST):
        unfinished = select(Run.id, Run.owner, Run.running_key).where(
            Run.finished_at.is_(None), Run.owner.in_(part)
        )
        for run_id, owner, key in session.execute(unfinished.order_by(*UNFINISHED_ORDER)):
            if key != keys[owner]:
                others.setdefault(keys[owner], []).append(run_id)
    locked: Counter[str] = Counter()
    for key, ids in others.items():
        for part in statements.in_parts(ids, MAX_IN_LIST):
            free = lock_free(session, part)
            if free:
                execute_dml(session, update(Run).where(Run.id.in_(free)).values(running_key=key))
            locked[key] += len(part) - len(free)
    return locked


def count_waiting(session: Session, *, owner: str | None = None, key: str | None = None) -> int:
    """Return the number of waiting runs of an owner or a key, at most MAX_COUNTED.

    None counts all runs.
    """
    waiting = select(Run.id).where(WAITS)
    if key is not None:
        waiting = waiting.where(Run.running_key == key)
    if owner is not None:
        waiting = waiting.where(Run.owner == owner)
    counted = select(func.count()).select_from(waiting.limit(MAX_COUNTED).subquery())
    return session.scalar(counted) or 0


class PlaceHolder(NamedTuple):
    """A run that has a place."""

    id: str
    owner: str
    name: str


class LongWait(NamedTuple):
    """A key whose oldest run has waited long, and the first runs that have its places.

    ``waiting`` is the number of runs that have waited since their creation.
    """

    running_key: str
    waiting: int
    since: datetime
    holders: Sequence[PlaceHolder]


def long_waits(session: Session, *, before: datetime, named: int) -> Sequence[LongWait]:
    """Return up to ``named`` keys with a run that waits since ``before``, the longest wait first.

    At most MAX_COUNTED waiting runs are read. A run that waits for a retry is left out, because
    the start of its wait is not stored.
    """
    waiting = select(Run.running_key, Run.created_at)
    waiting = waiting.where(WAITS, Run.sent_at.is_(None)).order_by(*_queue(session))
    some = waiting.limit(MAX_COUNTED).subquery()
    since = func.min(some.c.created_at)
    grouped = select(some.c.running_key, func.count(), since).group_by(some.c.running_key)
    longest = grouped.having(since < before).order_by(since, some.c.running_key).limit(named)
    rows: Sequence[Any] = session.execute(longest).all()
    return [
        LongWait(key, number, oldest_at, _holders(session, key, limit=named))
        for key, number, oldest_at in rows
    ]


def _holders(session: Session, key: str, *, limit: int) -> Sequence[PlaceHolder]:
    found: list[PlaceHolder] = []
    for condition in _HAVE_PLACE:
        having = select(Run.id, Run.owner, Run.name)
        having = having.where(*_UNFINISHED, condition, Run.running_key == key).limit(limit)
        found += [PlaceHolder(*row) for row in session.execute(having)]
    return sorted(found)[:limit]


def waiting(session: Session, *, run_id: str) -> Run | None:
    """Return the run if it waits for a place, or None."""
    return session.scalar(select(Run).where(Run.id == run_id, WAITS))
