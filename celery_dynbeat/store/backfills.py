"""Questions to the table of backfills, and those that a backfill asks of the history."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, or_, select, update
from sqlalchemy.orm import Session

from celery_dynbeat.common.run_states import REVOKE, Status
from celery_dynbeat.db import batches
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.index_order import force_index, in_index_order
from celery_dynbeat.db.models import Backfill, Origin, Run, Schedule
from celery_dynbeat.db.tables import BACKFILLS, SCHEDULES
from celery_dynbeat.store import rows
from celery_dynbeat.store.runs import (
    MAX_IN_LIST,
    UNFINISHED_INDEX,
    UNFINISHED_ORDER,
    execute_dml,
    is_unfinished_of,
)

#: What tells which fire times a row of history stands for.
_STANDS_FOR: tuple[Any, ...] = (
    Run.id,
    Run.status,
    Run.scheduled_for,
    Run.fire_count,
    Run.error,
)


def earliest_next_run_at() -> Any:
    """Return the subquery for the earliest ``next_run_at`` of all."""
    at = BACKFILLS.c.next_run_at
    return select(at).where(at.is_not(None)).order_by(at).limit(1).scalar_subquery()


def first_due_id(*, now: datetime) -> Any:
    """Return the condition that a backfill is due, as the database itself compares instants."""
    first = select(Backfill.id).where(*_due(now)).order_by(Backfill.next_run_at)
    return first.limit(1).scalar_subquery()


def _due(now: datetime) -> tuple[Any, ...]:
    return (Backfill.next_run_at.is_not(None), Backfill.next_run_at <= now)


@dataclass(frozen=True, slots=True)
class UnreadableBackfill:
    """A backfill that cannot go on because it, or its schedule, cannot be read; both are locked.

    ``schedule`` is None when the schedule was set aside before, or the fault is not its own.
    """

    backfill_id: int
    backfill: rows.UnreadableRow | None
    schedule: rows.UnreadableRow | None


@in_index_order
def lock_oldest_due(
    session: Session, *, now: datetime
) -> tuple[Backfill, Schedule] | UnreadableBackfill | None:
    """Return the backfill that has waited longest, with its schedule; both are locked.

    None when none is due, or when others hold those that are. A claim and an edit of the schedule
    wait for the end of the transaction, or pass over it.
    """
    statement = (
        select(Backfill, Schedule)
        .join(Schedule, Schedule.id == Backfill.schedule_id)
        .where(*_due(now))
        .order_by(Backfill.next_run_at)
        .limit(1)
        .with_for_update(skip_locked=True)
        .execution_options(populate_existing=True)
    )
    answer = session.execute(statement)
    try:
        row = answer.one_or_none()
    except rows.UNREADABLE:
        ids = statement.with_only_columns(Backfill.id, Schedule.id, maintain_column_froms=True)
        both = session.execute(ids).one_or_none()
        return None if both is None else _unreadable(session, both[0], both[1])
    return None if row is None else (row[0], row[1])


def _unreadable(session: Session, backfill_id: int, schedule_id: int) -> UnreadableBackfill:
    backfill, schedule = BACKFILLS.c, SCHEDULES.c
    of_backfill = select(*backfill).where(backfill.id == backfill_id)
    of_schedule = select(*schedule).where(schedule.id == schedule_id, schedule.error.is_(None))
    wrong = rows.read(session, of_backfill, key=backfill.id).unreadable
    with_it = rows.read(session, of_schedule, key=schedule.id).unreadable
    return UnreadableBackfill(
        backfill_id=backfill_id,
        backfill=wrong[0] if wrong else None,
        schedule=with_it[0] if with_it else None,
    )


def defer(session: Session, *, backfill_id: int, until: datetime) -> None:
    """Let nobody look at a backfill before ``until``."""
    put = update(Backfill).where(Backfill.id == backfill_id).values(next_run_at=until)
    execute_dml(session, put)


def cancel_unread(session: Session, *, backfill_id: int, now: datetime) -> None:
    """Cancel a backfill without reading it."""
    ended = {"next_run_at": None, "next_fire_at": None, "finished_at": now, "cancelled": True}
    execute_dml(session, update(Backfill).where(Backfill.id == backfill_id).values(**ended))


@in_index_order
def delete_orphans(session: Session, *, now: datetime) -> int:
    """Delete due backfills whose schedule is gone; return how many there were.

    SQLite's own shell, for one, does not follow foreign keys.
    """
    # Two statements: MySQL would wait for the locks of the schedules that a DELETE looks at.
    due = (
        select(Backfill.id, Schedule.id.label("there"))
        .outerjoin(Schedule, Schedule.id == Backfill.schedule_id)
        .where(*_due(now))
        .order_by(Backfill.next_run_at)
        .limit(MAX_IN_LIST)
    )
    found: Any = session.execute(due).all()
    ids = [row.id for row in found if row.there is None]
    return execute_dml(session, delete(Backfill).where(Backfill.id.in_(ids))) if ids else 0


@in_index_order
def lock_unfinished(session: Session, *, schedule_id: int) -> Backfill | None:
    """Return the backfill of the schedule that has not ended, locked; there is one at most."""
    # A locking read: the caller's snapshot may be older than another's backfill.
    statement = _of(schedule_id).where(Backfill.finished_at.is_(None)).limit(1).with_for_update()
    return session.scalars(statement.execution_options(populate_existing=True)).one_or_none()


def add(session: Session, backfill: Backfill) -> None:
    """Insert a backfill of a schedule that is locked."""
    # To PostgreSQL the schedule is changed by it: a transaction with an older snapshot, which
    # cannot see the backfill, can then not lock the schedule for another one.
    locked = update(Schedule).where(Schedule.id == backfill.schedule_id)
    execute_dml(session, locked.values(version=Schedule.version))
    session.add(backfill)
    session.flush()


@in_index_order
def lock(session: Session, *, schedule_id: int, backfill_id: int | None) -> Backfill | None:
    """Return a backfill of the schedule, locked; without an id the newest. None: there is none."""
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
    """Count the schedule's runs that have not ended, up to ``limit``, and not those of long ago."""
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
    """Return those of the fire times that have a run; a skipped one has none."""
    sent = (Run.schedule_id == schedule_id, Run.status != Status.SKIPPED)
    at = Run.scheduled_for
    if capabilities_of(session.get_bind(Run).dialect).has_lateral:
        # With the limit it is a query by itself, and no condition of one of the whole history.
        of_one = select(at).where(*sent).limit(1)
        statement = batches.lateral_for_each(at, instants, lambda each: of_one.where(at == each))
    else:
        statement = select(at).where(*sent, at.in_(instants))
    return set(session.scalars(statement))


@in_index_order
def first_run_from(session: Session, *, schedule_id: int, instant: datetime) -> Row[Any] | None:
    """Return id, status, scheduled_for, fire_count, error of the first row of history from then on.

    Manual runs are passed over: they lie between the fire times.
    """
    statement = (
        select(*_STANDS_FOR)
        .where(
            Run.schedule_id == schedule_id,
            Run.scheduled_for >= instant,
            Run.origin != Origin.MANUAL,
        )
        .order_by(Run.scheduled_for)
        .limit(1)
    )
    return session.execute(statement).one_or_none()


def shrink_skipped(session: Session, *, run_id: str, fire_count: int) -> int:
    """Let a skipped row stand for ``fire_count`` fire times; with 0 it goes."""
    is_skipped = (Run.id == run_id, Run.status == Status.SKIPPED)
    if fire_count:
        return execute_dml(session, update(Run).where(*is_skipped).values(fire_count=fire_count))
    return execute_dml(session, delete(Run).where(*is_skipped))


@in_index_order
def revoke_unstarted(session: Session, backfill: Backfill, *, now: datetime, reason: str) -> int:
    """Move the runs of a backfill that have not started to revoked; return how many."""
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
