"""Queries on requests, which are stored backfills and reruns of many runs."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, delete, or_, select, update
from sqlalchemy.orm import Session

from celery_dynbeat.common.states import Status
from celery_dynbeat.db import statements
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import REQUESTED_ORIGINS, REQUESTS, Request, Run
from celery_dynbeat.db.statements import Row as NamedRow
from celery_dynbeat.db.statements import force_index, in_index_order, in_parts, read
from celery_dynbeat.store import runs
from celery_dynbeat.store.runs import FIRE_TIME_INDEX, MAX_IN_LIST, execute_dml

_NEXT_RUN_AT = REQUESTS.c.next_run_at


def earliest_next_run_at() -> Any:
    """Return a subquery for the earliest ``next_run_at``, NULL if no request is unfinished."""
    unfinished = select(_NEXT_RUN_AT).where(_NEXT_RUN_AT.is_not(None))
    return unfinished.order_by(_NEXT_RUN_AT).limit(1).scalar_subquery()


@in_index_order
def lock_oldest_due(session: Session, *, now: datetime) -> Sequence[NamedRow]:
    """Return the due request with the earliest ``next_run_at``, locked. At most one row.

    Requests that another transaction has locked are skipped.
    """
    due = select(*REQUESTS.c).where(_NEXT_RUN_AT.is_not(None), now >= _NEXT_RUN_AT)
    due = due.order_by(_NEXT_RUN_AT).limit(1).with_for_update(skip_locked=True)
    return read(session, due)


def change(session: Session, *, request_id: int, values: Mapping[str, Any]) -> None:
    """Write columns of a locked request."""
    execute_dml(session, update(Request).where(Request.id == request_id).values(**values))


def postpone_oldest_due(session: Session, *, now: datetime, until: datetime) -> None:
    """Let the request that ``lock_oldest_due`` returns wait until an instant."""
    for request in lock_oldest_due(session, now=now):
        change(session, request_id=request.id, values={"next_run_at": until})


def end_of_owner(session: Session, *, owner: str, now: datetime) -> None:
    """End the requests of ``owner`` that are in progress. Their runs stay unchanged."""
    in_progress = (Request.owner == owner, Request.next_run_at.is_not(None))
    values = {"next_run_at": None, "finished_at": now, "cancelled": True}
    execute_dml(session, update(Request).where(*in_progress).values(values))


def add(session: Session, row: Request) -> None:
    """Insert a request."""
    session.add(row)
    session.flush()


@in_index_order
def lock_unfinished_backfill(session: Session, *, schedule_id: int) -> Request | None:
    """Lock and return the unfinished backfill of the schedule, or None. There is at most one."""
    # The read locks the row, because the caller's snapshot may be older than a backfill of another
    # transaction.
    statement = (
        select(Request)
        .where(Request.schedule_id == schedule_id, Request.finished_at.is_(None))
        .order_by(Request.id.desc())
        .limit(1)
        .with_for_update()
    )
    return session.scalars(statement.execution_options(populate_existing=True)).one_or_none()


@in_index_order
def get(
    session: Session, *, request_id: int, owner: str | None, for_update: bool = False
) -> Request | None:
    """Return a request of ``owner``, or None. ``owner=None`` means any request."""
    statement = select(Request).where(Request.id == request_id)
    if owner is not None:
        statement = statement.where(Request.owner == owner)
    if for_update:
        statement = statement.with_for_update()
    return session.scalars(statement.execution_options(populate_existing=True)).one_or_none()


@in_index_order
def page(
    session: Session,
    *,
    owner: str | None,
    name: str | None,
    kind: str | None,
    before: int | None,
    limit: int,
) -> Sequence[Request]:
    """Return up to ``limit`` requests with an id below ``before``, the newest first.

    None means any owner, name or kind, and the first page.
    """
    statement = select(Request).order_by(Request.id.desc()).limit(limit)
    if owner is not None:
        statement = force_index(statement, Request, "ix_dynbeat_request_owner")
        statement = statement.where(Request.owner == owner)
    if name is not None:
        statement = statement.where(Request.name == name)
    if kind is not None:
        statement = statement.where(Request.kind == kind)
    if before is not None:
        statement = statement.where(Request.id < before)
    return session.scalars(statement).all()


@in_index_order
def unfinished(session: Session, *, limit: int) -> Sequence[Request]:
    """Return up to ``limit`` unfinished requests, the oldest first."""
    due = select(Request).where(Request.next_run_at.is_not(None)).order_by(Request.next_run_at)
    return sorted(session.scalars(due.limit(limit)).all(), key=lambda row: row.id)


@in_index_order
def unfinished_run_ids(
    session: Session, ids: Sequence[str], *, started_after: datetime
) -> Sequence[str]:
    """Return the ``ids`` that belong to unfinished runs.

    Runs that started at ``started_after`` or earlier are left out.
    """
    counting = or_(Run.started_at.is_(None), Run.started_at > started_after)
    found: list[str] = []
    for at in range(0, len(ids), MAX_IN_LIST):
        part = Run.id.in_(ids[at : at + MAX_IN_LIST])
        statement = select(Run.id).where(part, Run.finished_at.is_(None), counting)
        found += session.scalars(statement.order_by(Run.id))
    return found


@in_index_order
def revoke_unstarted_runs(
    session: Session, request: Request, *, now: datetime, reason: str
) -> Sequence[Row[Any]]:
    """Move the unstarted runs of a locked request to revoked; return id, schedule_id and names."""
    revoked: list[Row[Any]] = []
    for part in in_parts(request.unfinished_ids, MAX_IN_LIST):
        rows = runs.lock_many(session, part)
        runs.revoke(session, [row.id for row in rows], now=now, reason=reason)
        revoked += rows
    return revoked


#: The columns that say which fire times a history row represents, of which trigger.
_FIRE_TIME_COLUMNS: tuple[Any, ...] = (
    Run.id,
    Run.status,
    Run.attempt,
    Run.scheduled_for,
    Run.fire_count,
    Run.error,
    Run.created_at,
)


@in_index_order
def fire_times_with_run(
    session: Session, *, schedule_id: int, instants: Sequence[datetime]
) -> set[datetime]:
    """Return which of the fire times have a run. A skipped fire time has no run."""
    is_run = or_(Run.status != Status.SKIPPED, Run.attempt > 0)
    sent = (Run.schedule_id == schedule_id, is_run)
    at = Run.scheduled_for
    if capabilities_of(session.get_bind(Run).dialect).has_lateral:
        # LIMIT makes it a separate query. Otherwise PostgreSQL merges it into one query of the
        # whole history.
        of_one = select(at).where(*sent).limit(1)
        statement = statements.lateral_for_each(at, instants, lambda each: of_one.where(at == each))
    else:
        statement = select(at).where(*sent, at.in_(instants))
    return set(session.scalars(statement))


def _is_by_call() -> ColumnElement[bool]:
    """Return the condition that the row is about a fire time that ``skip()`` took out."""
    is_unstarted = and_(Run.status == Status.SKIPPED, Run.attempt == 0)
    return and_(is_unstarted, Run.error.startswith("skipped by "))


@in_index_order
def skipped_by_call(
    session: Session, *, schedule_id: int, first: datetime, last: datetime, limit: int
) -> Sequence[datetime]:
    """Return the fire times that ``skip()`` took out: those in [first, last] and directly before.

    No other row of history lies between the last ones and ``first``, except manual runs and reruns.
    At most ``limit`` of them are read.
    """
    columns: Any = select(Run.id, Run.scheduled_for, Run.origin, _is_by_call().label("is_by_call"))
    found = force_index(columns, Run, FIRE_TIME_INDEX).where(Run.schedule_id == schedule_id)
    newest = found.where(Run.scheduled_for < first).order_by(Run.scheduled_for.desc())
    before = (
        row for row in read(session, newest.limit(limit)) if row.origin not in REQUESTED_ORIGINS
    )
    earlier = takewhile(lambda row: row.is_by_call, before)
    inside = found.where(Run.scheduled_for >= first, Run.scheduled_for <= last, _is_by_call())
    return [row.scheduled_for for row in (*earlier, *read(session, inside))]


@in_index_order
def remove_skipped_by_call(
    session: Session, *, schedule_id: int, instants: Collection[datetime]
) -> None:
    """Delete the rows of these fire times that ``skip()`` took out."""
    if instants:
        of_schedule = delete(Run).where(Run.schedule_id == schedule_id, _is_by_call())
        execute_dml(session, of_schedule.where(Run.scheduled_for.in_(instants)))


@in_index_order
def first_run_from(session: Session, *, schedule_id: int, instant: datetime) -> Row[Any] | None:
    """Return the first history row, with the columns that say which fire times it represents.

    The row is the first with ``scheduled_for`` at or after ``instant``. Manual runs and reruns are
    left out, because their instants are not fire times. Rows of ``skip()`` are left out, because
    they cover no other fire time. The result is None if there is no such row, or if MAX_IN_LIST
    rows of ``skip()`` come first.
    """
    statement: Any = (
        select(*_FIRE_TIME_COLUMNS, _is_by_call().label("is_by_call"))
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
    is_skipped = (Run.id == run_id, Run.status == Status.SKIPPED, Run.attempt == 0)
    if fire_count:
        return execute_dml(session, update(Run).where(*is_skipped).values(fire_count=fire_count))
    return execute_dml(session, delete(Run).where(*is_skipped))
