"""Queries on the unfinished runs of schedules, for their overlap policy."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Select, func, select, update
from sqlalchemy.orm import Session

from celery_dynbeat.common.states import Status
from celery_dynbeat.db import statements
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import Origin, Run, Schedule
from celery_dynbeat.db.statements import Row, force_index, in_index_order, read
from celery_dynbeat.store.runs import (
    MAX_IN_LIST,
    NEWEST_UNFINISHED,
    UNFINISHED_INDEX,
    UNFINISHED_ORDER,
    execute_dml,
    is_unfinished_of,
    lock_free,
    newest_unfinished,
    revoke_unstarted,
    update_free,
)

#: The error of a run that a newer run replaced.
REPLACED = "overlap: a newer run took its place"
#: The columns of a run that the overlap policy needs.
_OVERLAP_COLUMNS: tuple[Any, ...] = (
    Run.id,
    Run.schedule_id,
    Run.scheduled_for,
    Run.origin,
    Run.sent_at,
    Run.started_at,
)
#: Unfinished runs of one schedule that the overlap policy reads.
MAX_UNFINISHED = 100
#: Buffered runs of one schedule that are read; usually there is one.
MAX_RELEASED = 10


@in_index_order
def unfinished_runs(session: Session, schedule_ids: Sequence[int]) -> Sequence[Row]:
    """Return the unfinished runs of the schedules, in any order and without locks.

    A schedule with more than MAX_UNFINISHED contributes at least the newest MAX_UNFINISHED.
    """
    parts = list(statements.in_parts(schedule_ids, MAX_IN_LIST))
    if capabilities_of(session.get_bind(Run).dialect).has_lateral:
        each = (newest_unfinished(_OVERLAP_COLUMNS, part, limit=MAX_UNFINISHED) for part in parts)
        return [row for query in each for row in read(session, query)]
    runs: list[Row] = []
    while parts:
        part = parts.pop()
        limit = MAX_UNFINISHED + (2 * len(part) if len(part) > 1 else 0)
        some = read(session, _unfinished(part, limit=limit))
        if len(part) == 1 or len(some) < limit:
            runs += some
        else:
            # Some schedules have very many runs. Bisect until these schedules are alone.
            middle = len(part) // 2
            parts += [part[:middle], part[middle:]]
    return runs


def _unfinished(schedule_ids: Sequence[int], *, limit: int) -> Select[Any]:
    unended = (Run.finished_at.is_(None), Run.schedule_id.in_(schedule_ids))
    statement = (
        force_index(select(*_OVERLAP_COLUMNS), Run, UNFINISHED_INDEX).where(*unended).limit(limit)
    )
    # Index order is possible only for one schedule: the rows of a list would be sorted.
    return statement.order_by(*NEWEST_UNFINISHED) if len(schedule_ids) == 1 else statement


@in_index_order
def with_locked_runs(session: Session, schedule_ids: Sequence[int]) -> set[int | None]:
    """Return those of the schedules with an unfinished run that another transaction has locked.

    The other unfinished runs of the schedules are locked for this transaction.
    """
    if not schedule_ids:
        return set()
    unfinished = force_index(select(Run.id, Run.schedule_id), Run, UNFINISHED_INDEX)
    found = session.execute(unfinished.where(is_unfinished_of(session, schedule_ids)))
    schedule_of = {row.id: row.schedule_id for row in found}
    locked = schedule_of.keys() - set(lock_free(session, list(schedule_of)))
    return {schedule_of[run_id] for run_id in locked}


@in_index_order
def cancel_replaced(
    session: Session, schedule_ids: Sequence[int], *, by: Sequence[str], now: datetime
) -> list[str]:
    """Cancel the unfinished runs of the schedules except those in ``by``, which replace them.

    Unstarted runs are revoked. Running runs are marked as cancelled, so that no message starts them
    again. Returns the ids of the newly marked runs: beat asks their workers to terminate them.
    """
    if not schedule_ids:
        return []
    revoke_unstarted(session, schedule_ids=schedule_ids, now=now, reason=REPLACED, except_ids=by)
    # This also finds a run that a worker started just before the revocation.
    running = (is_unfinished_of(session, schedule_ids), Run.status == Status.RUNNING)
    mark = update(Run).where(*running, Run.cancelled_at.is_(None)).values(cancelled_at=now)
    execute_dml(session, force_index(mark, Run.__table__, UNFINISHED_INDEX))
    marked = force_index(select(Run.id), Run, UNFINISHED_INDEX)
    return list(session.scalars(marked.where(*running, Run.cancelled_at == now)))


@in_index_order
def cancelled_before(session: Session, *, before: datetime, limit: int) -> Sequence[str]:
    """Return up to ``limit`` ids of running runs that were cancelled ``before`` an instant.

    Runs with an error of ``note_termination_failure`` are left out.
    """
    statement = force_index(select(Run.id), Run, UNFINISHED_INDEX).where(
        Run.finished_at.is_(None),
        Run.status == Status.RUNNING,
        Run.cancelled_at <= before,
        Run.error.is_(None),
    )
    return session.scalars(statement.order_by(*UNFINISHED_ORDER).limit(limit)).all()


@in_index_order
def note_termination_failure(session: Session, *, run_ids: Sequence[str], reason: str) -> bool:
    """Store why cancelled runs were not terminated; return whether a row was changed.

    Runs that another transaction has locked do not change.
    """
    unnoted = (
        Run.id.in_(run_ids),
        Run.status == Status.RUNNING,
        Run.cancelled_at.is_not(None),
        Run.error.is_(None),
    )
    return update_free(session, *unnoted, values={"error": reason}) > 0


def make_buffered_overdue(session: Session, *, run_id: str, now: datetime) -> int:
    """Make the run that is buffered behind ``run_id`` overdue, so that beat sends it at once.

    Returns the number of changed runs. A run that another transaction has locked does not change:
    the sweep sends it later.
    """
    schedule_id = select(Run.schedule_id).where(Run.id == run_id).scalar_subquery()
    unsent = (
        Run.status == Status.PENDING,
        Run.sent_at.is_(None),
        Run.origin == Origin.SCHEDULE,
    )
    # This is the worker's transaction, without the setting of ``in_index_order``. A small limit in
    # the order of an index makes the planner use it.
    buffered = (
        force_index(select(Run.id), Run, UNFINISHED_INDEX)
        .where(Run.finished_at.is_(None), Run.schedule_id == schedule_id, *unsent)
        .order_by(*UNFINISHED_ORDER)
        .limit(MAX_RELEASED)
    )
    ids = session.scalars(buffered).all()
    if not ids:
        return 0
    return update_free(session, Run.id.in_(ids), *unsent, values={"overdue_at": now})


@in_index_order
def make_all_buffered_overdue(
    session: Session, schedule_ids: Sequence[int], *, default: str, now: datetime
) -> int:
    """Make the buffered runs of the schedules overdue, because other runs of them have ended.

    ``default`` is the overlap policy of a schedule without its own. Returns the number of changed
    runs. The sweep leaves a run buffered that still has to wait.
    """
    policy = func.coalesce(Schedule.overlap, default)
    buffering = select(Schedule.id).where(Schedule.id.in_(schedule_ids), policy == "buffer_one")
    ids = session.scalars(buffering).all()
    if not ids:
        return 0
    statement = update(Run).where(
        is_unfinished_of(session, ids),
        Run.status == Status.PENDING,
        Run.sent_at.is_(None),
        Run.origin == Origin.SCHEDULE,
    )
    made = statement.values(overdue_at=now)
    return execute_dml(session, force_index(made, Run.__table__, UNFINISHED_INDEX))
