"""Queries on requests: the stored backfills and reruns of many."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, or_, select, update
from sqlalchemy.orm import Session

from celery_dynbeat.db.batches import in_parts
from celery_dynbeat.db.index_order import force_index, in_index_order
from celery_dynbeat.db.models import Request, Run
from celery_dynbeat.db.tables import REQUESTS
from celery_dynbeat.store import cancels, runs
from celery_dynbeat.store.rows import LockedRows, read
from celery_dynbeat.store.runs import MAX_IN_LIST, execute_dml

_NEXT_RUN_AT = REQUESTS.c.next_run_at


def earliest_next_run_at() -> Any:
    """Return a subquery for the earliest ``next_run_at``, NULL if no request is unfinished."""
    unfinished = select(_NEXT_RUN_AT).where(_NEXT_RUN_AT.is_not(None))
    return unfinished.order_by(_NEXT_RUN_AT).limit(1).scalar_subquery()


def first_due_id(*, now: datetime) -> Any:
    """Return a subquery for the id of the first due request, NULL if none is due.

    It reads no instant, so it works for unreadable rows.
    """
    due = select(REQUESTS.c.id).where(_NEXT_RUN_AT.is_not(None), now >= _NEXT_RUN_AT)
    return due.order_by(_NEXT_RUN_AT).limit(1).scalar_subquery()


@in_index_order
def lock_oldest_due(session: Session, *, now: datetime) -> LockedRows:
    """Return the due request with the earliest ``next_run_at``, locked. At most one row.

    Requests that another transaction has locked are skipped.
    """
    due = select(*REQUESTS.c).where(_NEXT_RUN_AT.is_not(None), now >= _NEXT_RUN_AT)
    due = due.order_by(_NEXT_RUN_AT).limit(1).with_for_update(skip_locked=True)
    return read(session, due, key=REQUESTS.c.id)


def change(session: Session, *, request_id: int, values: Mapping[str, Any]) -> None:
    """Write columns of a locked request."""
    execute_dml(session, update(Request).where(Request.id == request_id).values(**values))


def add(session: Session, row: Request) -> None:
    """Insert a request."""
    session.add(row)
    session.flush()


@in_index_order
def lock_unfinished_backfill(session: Session, *, schedule_id: int) -> Request | None:
    """Return the unfinished backfill of the schedule, locked, or None; there is at most one."""
    # A locking read: the caller's snapshot may be older than a backfill of another transaction.
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
    """Return a request of ``owner``, or None. ``owner`` None means any request."""
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
    """Return those of the runs that are unfinished.

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
        rows = cancels.lock_many(session, part)
        runs.revoke(session, [row.id for row in rows], now=now, reason=reason)
        revoked += rows
    return revoked
