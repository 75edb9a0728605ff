"""Queries on stuck runs (dead workers, lost retries) and on consecutive failures."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import and_, func, literal, or_, select, update
from sqlalchemy.orm import Session
from sqlalchemy.orm import join as orm_join

from celery_dynbeat.common.states import LOSE, RERUN, RESEND_RETRY, Status
from celery_dynbeat.db.models import Node, NodeKind, Origin, Run, Schedule
from celery_dynbeat.db.statements import Row, in_index_order, read
from celery_dynbeat.db.types import UtcDateTime, seconds_between
from celery_dynbeat.store.runs import UNFINISHED_ORDER, execute_dml

#: Additional rows between the last outcomes: skipped, revoked, manual and unfinished runs.
UNTRIED_MARGIN = 500


@in_index_order
def lock_lost(
    session: Session, *, now: datetime, silent_since: datetime, max_run_time: timedelta, limit: int
) -> Sequence[Row]:
    """Return up to ``limit`` lost runs, locked for this transaction.

    - Running runs whose worker is dead: another process has registered under its name since, or its
      last heartbeat is not after ``silent_since``.
    - Retrying runs of which a canvas executes the rest (``Task.replace()``), and that began more
      than the ``max_run_time`` of their schedule ago, or the given one.

    Rows that another beat has locked are skipped.
    """
    lost = and_(
        Run.finished_at.is_(None),
        # Before the joins: a backlog of other unfinished runs is not joined.
        Run.status.in_(LOSE.sources),
        or_(_is_orphaned(silent_since), _is_unheard_of(now, max_run_time)),
    )
    # Three steps, because MariaDB also locks the joined tables. It would skip a node whose row a
    # heartbeat has locked, and the node would count as missing.
    candidates = select(Run.id).select_from(_with_schedule(_with_node())).where(lost)
    ids = session.scalars(candidates.order_by(*UNFINISHED_ORDER).limit(limit)).all()
    if not ids:
        return []
    return _lock(session, ids, _with_node(), lost)


def running_on_worker(session: Session, *, worker: str, limit: int) -> Sequence[Row]:
    """Return id, attempt and worker_pid of up to ``limit`` running runs of a worker node."""
    statement = (
        select(Run.id, Run.attempt, Run.worker_pid)
        .where(Run.worker == worker, Run.finished_at.is_(None), Run.status == Status.RUNNING)
        # The order of the index of a worker's unfinished runs.
        .order_by(Run.worker, Run.finished_at)
        .limit(limit)
    )
    return session.execute(statement).all()


def lock_attempts(session: Session, *, worker: str, attempts: Mapping[str, int]) -> Sequence[Row]:
    """Return the runs that are still running in these attempts on ``worker``, locked.

    ``attempts`` maps run ids to attempts. Rows that another transaction has locked are skipped.
    """
    unchanged = and_(
        Run.status == Status.RUNNING,
        Run.worker == worker,
        or_(*(and_(Run.id == key, Run.attempt == attempt) for key, attempt in attempts.items())),
    )
    return _lock(session, list(attempts), Run, unchanged)


def _lock(session: Session, ids: Sequence[str], source: Any, condition: Any) -> Sequence[Row]:
    lock = select(Run.id).where(Run.id.in_(ids)).with_for_update(skip_locked=True)
    locked = session.scalars(lock).all()
    statement: Any = (
        select(
            Run.id,
            Run.schedule_id,
            Run.owner,
            Run.name,
            Run.task,
            Run.worker,
            Run.origin,
            Run.status,
            Run.attempt,
            Run.redelivered_attempt,
            Run.cancelled_at,
            Schedule.on_lost,
            Schedule.enabled,
            Schedule.pause_after_failures,
        )
        .select_from(_with_schedule(source))
        .where(Run.id.in_(locked), condition)
    )
    return read(session, statement)


def _with_node() -> Any:
    return orm_join(
        Run, Node, and_(Node.kind == NodeKind.WORKER, Node.name == Run.worker), isouter=True
    )


def _with_schedule(source: Any) -> Any:
    return orm_join(source, Schedule, Schedule.id == Run.schedule_id, isouter=True)


def _is_orphaned(silent_since: datetime) -> Any:
    replaced = Node.started_at > Run.started_at
    silent = and_(
        Run.started_at <= silent_since,
        or_(Node.name.is_(None), Node.seen_at <= silent_since, Node.stopped_at <= silent_since),
    )
    return and_(Run.status == Status.RUNNING, or_(replaced, silent))


def _is_unheard_of(now: datetime, max_run_time: timedelta) -> Any:
    longest = func.coalesce(Schedule.max_run_time, max_run_time.total_seconds())
    return and_(
        Run.status == Status.RETRYING,
        # A retry, and the replacement by one task, have an instant: beat sends them again.
        Run.retry_at.is_(None),
        seconds_between(Run.started_at, literal(now, UtcDateTime())) > longest,
    )


def end_lost(
    session: Session, ids: Sequence[str], *, status: Status, now: datetime, error: str
) -> int:
    """Move running and retrying runs to lost or revoked. Return their number.

    Maintenance corrects the schedules of lost runs (``store.failing``).
    """
    if not ids:
        return 0
    statement = (
        update(Run)
        .where(Run.id.in_(ids), Run.status.in_(LOSE.sources))
        .values(
            status=status,
            finished_at=now,
            error=error,
            retry_at=now if status == Status.LOST else None,
        )
    )
    return execute_dml(session, statement)


def rerun(session: Session, ids: Sequence[str], *, now: datetime, error: str) -> int:
    """Move running runs to pending: beat sends them for a new attempt. Return their number."""
    if not ids:
        return 0
    statement = (
        update(Run)
        .where(Run.id.in_(ids), Run.status.in_(RERUN.sources))
        .values(status=Status.PENDING, overdue_at=now, started_at=None, error=error)
    )
    return execute_dml(session, statement)


@in_index_order
def resend_retries(session: Session, *, before: datetime, now: datetime, limit: int) -> int:
    """Move up to ``limit`` runs whose retry was due ``before`` an instant to pending.

    The broker has lost Celery's message of the retry. Beat sends a message with the same retry
    count in its place. Returns the number of runs.
    """
    # An ended run with ``retry_at`` waits for ``store.failing.deferred``.
    late = select(Run.id).where(
        Run.retry_at.is_not(None),
        Run.retry_at <= before,
        Run.status.in_(RESEND_RETRY.sources),
    )
    # Locked within the limit: locked runs at the front must not hide the others.
    free = late.order_by(Run.retry_at).limit(limit).with_for_update(skip_locked=True)
    ids = session.scalars(free).all()
    if not ids:
        return 0
    statement = (
        update(Run)
        .where(Run.id.in_(ids), Run.status.in_(RESEND_RETRY.sources), Run.retry_at <= before)
        .values(
            status=Status.PENDING,
            overdue_at=now,
            retry_at=None,
            started_at=None,
            retries=Run.retries + 1,
        )
    )
    return execute_dml(session, statement)


@in_index_order
def latest_outcomes(
    session: Session, *, schedule_id: int, until: datetime, limit: int
) -> Sequence[Row]:
    """Return status, finished_at and error of the last succeeded, failed and lost runs.

    The newest fire time up to ``until`` comes first. Rows after it are skips of the future. Manual
    runs and runs of a backfill are left out. The query reads at most the newest ``limit`` +
    UNTRIED_MARGIN rows of the schedule's history.
    """
    newest = (
        select(Run.status, Run.finished_at, Run.error, Run.origin)
        .where(Run.schedule_id == schedule_id, Run.scheduled_for <= until)
        .order_by(Run.scheduled_for.desc())
        .limit(limit + UNTRIED_MARGIN)
        .subquery()
    )
    statement: Any = (
        select(newest.c.status, newest.c.finished_at, newest.c.error)
        .where(
            newest.c.origin == Origin.SCHEDULE,
            newest.c.status.in_((Status.SUCCEEDED, Status.FAILED, Status.LOST)),
        )
        .limit(limit)
    )
    return session.execute(statement).all()
