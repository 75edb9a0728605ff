"""Queries on backfills, and the queries of a backfill on the history."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, not_, or_, select, update
from sqlalchemy.orm import Session

from celery_dynbeat.common.run_states import REVOKE, Status
from celery_dynbeat.db import batches
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.index_order import force_index, in_index_order
from celery_dynbeat.db.models import REQUESTED_ORIGINS, Backfill, Origin, Run, Schedule
from celery_dynbeat.db.tables import BACKFILLS, SCHEDULES
from celery_dynbeat.store import holds, rows, skips
from celery_dynbeat.store.runs import (
    MAX_IN_LIST,
    UNFINISHED_INDEX,
    UNFINISHED_ORDER,
    execute_dml,
    is_unfinished_of,
)

#: The columns that say which fire times a history row represents.
_FIRE_TIME_COLUMNS: tuple[Any, ...] = (
    Run.id,
    Run.status,
    Run.scheduled_for,
    Run.fire_count,
    Run.error,
)


def earliest_next_run_at() -> Any:
    """Return a subquery for the earliest ``next_run_at``, NULL if no backfill is unfinished."""
    at = BACKFILLS.c.next_run_at
    return select(at).where(at.is_not(None)).order_by(at).limit(1).scalar_subquery()


def first_due_id(*, now: datetime) -> Any:
    """Return a subquery for the id of the first due backfill, NULL if none is due.

    It reads no instant, so it works for unreadable rows.
    """
    first = select(Backfill.id).where(*_due(now)).order_by(Backfill.next_run_at)
    return first.limit(1).scalar_subquery()


def _due(now: datetime) -> tuple[Any, ...]:
    return (Backfill.next_run_at.is_not(None), Backfill.next_run_at <= now)


@dataclass(frozen=True, slots=True)
class UnreadableBackfill:
    """A due backfill that cannot be read, or whose schedule cannot be read. Both are locked.

    ``backfill`` is None if the backfill is readable. ``schedule`` is None if the schedule is
    readable or quarantined already.
    """

    backfill_id: int
    schedule_id: int
    backfill: rows.UnreadableRow | None
    schedule: rows.UnreadableRow | None


@in_index_order
def lock_oldest_due(
    session: Session, *, now: datetime
) -> tuple[Backfill, Schedule] | UnreadableBackfill | None:
    """Return the due backfill with the earliest ``next_run_at``, and its schedule, both locked.

    None if no backfill is due, if other transactions have locked the due ones, or during a hold of
    everything. Until the end of
    this transaction a claim skips the schedule, and an edit of the schedule waits.
    """
    statement = (
        select(Backfill, Schedule)
        .join(Schedule, Schedule.id == Backfill.schedule_id)
        .where(*_due(now), not_(holds.everything_is_held(now)))
        .order_by(Backfill.next_run_at)
        .limit(1)
        .with_for_update(skip_locked=True)
        .execution_options(populate_existing=True)
    )
    result = session.execute(statement)
    try:
        row = result.one_or_none()
    except rows.UNREADABLE:
        ids = statement.with_only_columns(Backfill.id, Schedule.id, maintain_column_froms=True)
        both = session.execute(ids).one_or_none()
        return None if both is None else _unreadable(session, both[0], both[1])
    return None if row is None else (row[0], row[1])


def _unreadable(session: Session, backfill_id: int, schedule_id: int) -> UnreadableBackfill:
    backfill, schedule = BACKFILLS.c, SCHEDULES.c
    the_backfill = select(*backfill).where(backfill.id == backfill_id)
    the_schedule = select(*schedule).where(schedule.id == schedule_id, schedule.error.is_(None))
    backfill_errors = rows.read(session, the_backfill, key=backfill.id).unreadable
    schedule_errors = rows.read(session, the_schedule, key=schedule.id).unreadable
    return UnreadableBackfill(
        backfill_id=backfill_id,
        schedule_id=schedule_id,
        backfill=backfill_errors[0] if backfill_errors else None,
        schedule=schedule_errors[0] if schedule_errors else None,
    )


def defer(session: Session, *, backfill_id: int, until: datetime) -> None:
    """Set when a backfill is due next: no beat reads it before ``until``."""
    deferred = update(Backfill).where(Backfill.id == backfill_id).values(next_run_at=until)
    execute_dml(session, deferred)


def cancel_unread(session: Session, *, backfill_id: int, now: datetime) -> None:
    """Cancel a backfill without reading it."""
    ended = {"next_run_at": None, "next_fire_at": None, "finished_at": now, "cancelled": True}
    execute_dml(session, update(Backfill).where(Backfill.id == backfill_id).values(**ended))


@in_index_order
def delete_orphans(session: Session, *, now: datetime) -> int:
    """Delete due backfills whose schedule does not exist, and return their number.

    A DELETE of a schedule leaves them behind where foreign keys are off, as in SQLite's shell.
    """
    # Two statements: on MySQL a DELETE with a join would wait for locks on the schedules.
    due = (
        select(Backfill.id, Schedule.id.label("there"))
        .outerjoin(Schedule, Schedule.id == Backfill.schedule_id)
        .where(*_due(now))
        .order_by(Backfill.next_run_at)
        .limit(MAX_IN_LIST)
    )
    due_rows: Any = session.execute(due).all()
    ids = [row.id for row in due_rows if row.there is None]
    return execute_dml(session, delete(Backfill).where(Backfill.id.in_(ids))) if ids else 0


@in_index_order
def lock_unfinished(session: Session, *, schedule_id: int) -> Backfill | None:
    """Return the unfinished backfill of the schedule, locked, or None; there is at most one."""
    # A locking read: the caller's snapshot may be older than a backfill of another transaction.
    statement = _of(schedule_id).where(Backfill.finished_at.is_(None)).limit(1).with_for_update()
    return session.scalars(statement.execution_options(populate_existing=True)).one_or_none()


def add(session: Session, backfill: Backfill) -> None:
    """Insert a backfill of a locked schedule."""
    # This UPDATE is a change of the schedule for PostgreSQL. A transaction with an older snapshot
    # cannot see the backfill; because of the UPDATE it cannot lock the schedule for another one.
    locked = update(Schedule).where(Schedule.id == backfill.schedule_id)
    execute_dml(session, locked.values(version=Schedule.version))
    session.add(backfill)
    session.flush()


@in_index_order
def lock(session: Session, *, schedule_id: int, backfill_id: int | None) -> Backfill | None:
    """Return a backfill of the schedule, locked, or None. Without an id it is the newest."""
    statement = _of(schedule_id).limit(1).with_for_update()
    if backfill_id is not None:
        statement = statement.where(Backfill.id == backfill_id)
    return session.scalars(statement.execution_options(populate_existing=True)).one_or_none()


@in_index_order
def history(session: Session, *, schedule_id: int, limit: int) -> Sequence[Backfill]:
    """Return up to ``limit`` backfills of the schedule, the newest first."""
    return session.scalars(_of(schedule_id).limit(limit)).all()


def _of(schedule_id: int) -> Any:
    return select(Backfill).where(Backfill.schedule_id == schedule_id).order_by(Backfill.id.desc())


@in_index_order
def count_unfinished_runs(
    session: Session,
    *,
    schedule_id: int,
    started_after: datetime,
    origin: Origin | None = None,
    limit: int,
) -> int:
    """Return the number of unfinished runs of the schedule, at most ``limit``.

    Runs that started at ``started_after`` or earlier do not count. ``origin`` None means any.
    """
    statement = (
        select(Run.id)
        .where(
            Run.finished_at.is_(None),
            Run.schedule_id == schedule_id,
            or_(Run.started_at.is_(None), Run.started_at > started_after),
        )
        .order_by(*UNFINISHED_ORDER)
        .limit(limit)
    )
    if origin is not None:
        statement = statement.where(Run.origin == origin)
    return len(session.scalars(statement).all())


@in_index_order
def fire_times_with_run(
    session: Session, *, schedule_id: int, instants: Sequence[datetime]
) -> set[datetime]:
    """Return those of the fire times that have a run. Skipped rows do not count as runs."""
    sent = (Run.schedule_id == schedule_id, Run.status != Status.SKIPPED)
    at = Run.scheduled_for
    if capabilities_of(session.get_bind(Run).dialect).has_lateral:
        # LIMIT makes it a separate query. Otherwise PostgreSQL merges it into one query of the
        # whole history.
        of_one = select(at).where(*sent).limit(1)
        statement = batches.lateral_for_each(at, instants, lambda each: of_one.where(at == each))
    else:
        statement = select(at).where(*sent, at.in_(instants))
    return set(session.scalars(statement))


@in_index_order
def first_run_from(session: Session, *, schedule_id: int, instant: datetime) -> Row[Any] | None:
    """Return id, status, scheduled_for, fire_count and error of the first history row.

    The row is the first with ``scheduled_for`` at or after ``instant``. Manual runs and reruns are
    left out, because their instants are not fire times. Rows of ``skip()`` are left out, because
    they cover no other fire time. None if there is no row, or after MAX_IN_LIST rows of ``skip()``.
    """
    statement: Any = (
        select(*_FIRE_TIME_COLUMNS, skips.is_by_call().label("is_by_call"))
        .where(
            Run.schedule_id == schedule_id,
            Run.scheduled_for >= instant,
            Run.origin.not_in(REQUESTED_ORIGINS),
        )
        .order_by(Run.scheduled_for)
    )
    first = session.execute(statement.limit(1)).one_or_none()
    if first is None or not first.is_by_call:
        return first
    rows_from = session.execute(statement.limit(MAX_IN_LIST))
    return next((row for row in rows_from if not row.is_by_call), None)


def shrink_skipped(session: Session, *, run_id: str, fire_count: int) -> int:
    """Set the ``fire_count`` of a skipped row; delete the row if it is 0. Return the row count."""
    is_skipped = (Run.id == run_id, Run.status == Status.SKIPPED)
    if fire_count:
        return execute_dml(session, update(Run).where(*is_skipped).values(fire_count=fire_count))
    return execute_dml(session, delete(Run).where(*is_skipped))


@in_index_order
def revoke_unstarted(session: Session, backfill: Backfill, *, now: datetime, reason: str) -> int:
    """Move the unstarted runs of a backfill to revoked and return their number."""
    statement = (
        update(Run)
        .where(
            is_unfinished_of(session, [backfill.schedule_id]),
            Run.scheduled_for.between(backfill.start_at, backfill.end_at),
            Run.origin == Origin.BACKFILL,
            Run.status.in_(REVOKE.sources),
        )
        .values(
            status=Status.REVOKED, finished_at=now, overdue_at=None, retry_at=None, error=reason
        )
    )
    return execute_dml(session, force_index(statement, Run.__table__, UNFINISHED_INDEX))
