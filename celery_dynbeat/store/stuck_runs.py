"""Questions about runs that went wrong: those whose worker is gone, and failures in a row."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, and_, or_, select, update
from sqlalchemy.orm import Session
from sqlalchemy.orm import join as orm_join

from celery_dynbeat.common.run_states import LOSE, RERUN, RESEND_RETRY, Status
from celery_dynbeat.db.index_order import in_index_order
from celery_dynbeat.db.models import Node, NodeKind, Origin, Run, Schedule
from celery_dynbeat.store.rows import LockedRows, read
from celery_dynbeat.store.runs import UNFINISHED_ORDER, execute_dml

#: Rows between the last runs that were tried: skipped, revoked, manual ones, those under way.
UNTRIED_MARGIN = 500


@in_index_order
def lock_lost(session: Session, *, silent_since: datetime, limit: int) -> LockedRows:
    """Return up to ``limit`` running runs whose worker is gone, with what decides their fate.

    Gone is a node whose name another process took since, or one of which nothing was heard after
    ``silent_since``. The runs are locked; those that another beat has locked are skipped.
    """
    # Three steps, because MariaDB locks the joined tables too: a node whose row a heartbeat has
    # locked would be skipped, and taken for one that is not there.
    candidates = select(Run.id).select_from(_lost_runs()).where(_is_lost(silent_since))
    found = session.scalars(candidates.order_by(*UNFINISHED_ORDER).limit(limit)).all()
    if not found:
        return LockedRows([], [])
    return _lock(session, found, _lost_runs(), _is_lost(silent_since))


def running_on_worker(
    session: Session, *, worker: str, limit: int
) -> Sequence[Row[str, int, int | None]]:
    """Return id, attempt and worker_pid of up to ``limit`` running runs of a worker node."""
    statement = (
        select(Run.id, Run.attempt, Run.worker_pid)
        .where(Run.worker == worker, Run.finished_at.is_(None), Run.status == Status.RUNNING)
        # In the order of the index of a worker's unfinished runs.
        .order_by(Run.worker, Run.finished_at)
        .limit(limit)
    )
    return session.execute(statement).all()


def lock_attempts(session: Session, *, worker: str, attempts: Mapping[str, int]) -> LockedRows:
    """Return the runs that still are in these attempts of ``worker``, with what decides their fate.

    ``attempts`` holds an attempt for each run id. The runs are locked; those that another
    transaction has locked are skipped.
    """
    unchanged = and_(
        Run.status == Status.RUNNING,
        Run.worker == worker,
        or_(*(and_(Run.id == key, Run.attempt == attempt) for key, attempt in attempts.items())),
    )
    return _lock(session, list(attempts), Run, unchanged)


def _lock(session: Session, ids: Sequence[str], source: Any, condition: Any) -> LockedRows:
    lock = select(Run.id).where(Run.id.in_(ids)).with_for_update(skip_locked=True)
    locked = session.scalars(lock).all()
    statement: Any = (
        select(
            Run.id,
            Run.schedule_id,
            Run.worker,
            Run.origin,
            Run.attempt,
            Run.redelivered_attempt,
            Run.cancelled_at,
            Schedule.on_lost,
            Schedule.enabled,
            Schedule.pause_after_failures,
        )
        .select_from(orm_join(source, Schedule, Schedule.id == Run.schedule_id, isouter=True))
        .where(Run.id.in_(locked), condition)
    )
    return read(session, statement, key=Run.id)


def _lost_runs() -> Any:
    return orm_join(
        Run, Node, and_(Node.kind == NodeKind.WORKER, Node.name == Run.worker), isouter=True
    )


def _is_lost(silent_since: datetime) -> Any:
    replaced = Node.started_at > Run.started_at
    silent = and_(
        Run.started_at <= silent_since,
        or_(Node.name.is_(None), Node.seen_at <= silent_since, Node.stopped_at <= silent_since),
    )
    return and_(Run.finished_at.is_(None), Run.status == Status.RUNNING, or_(replaced, silent))


def end_lost(
    session: Session, ids: Sequence[str], *, status: Status, now: datetime, error: str
) -> int:
    """Move running runs, whose worker is gone, to lost or revoked."""
    if not ids:
        return 0
    statement = (
        update(Run)
        .where(Run.id.in_(ids), Run.status.in_(LOSE.sources))
        .values(status=status, finished_at=now, error=error)
    )
    return execute_dml(session, statement)


def rerun(session: Session, ids: Sequence[str], *, now: datetime, error: str) -> int:
    """Move running runs back to pending: beat sends them again, for a new attempt."""
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
    """Move up to ``limit`` runs whose retry was to begin ``before`` an instant back to pending.

    The broker has forgotten Celery's message, so beat sends one in its place, with the same count.
    """
    waiting = select(Run.id).where(Run.retry_at.is_not(None), Run.retry_at <= before)
    ids = session.scalars(waiting.order_by(Run.retry_at).limit(limit)).all()
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
def latest_outcomes(session: Session, *, schedule_id: int, limit: int) -> Sequence[Row[Any]]:
    """Return status, finished_at and error of the schedule's own last runs that were tried.

    By fire time, the newest first; manual runs and those of a backfill are left out. Of the
    schedule's history the newest ``limit`` + UNTRIED_MARGIN rows are looked at.
    """
    newest = (
        select(Run.status, Run.finished_at, Run.error, Run.origin)
        .where(Run.schedule_id == schedule_id)
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


def pause_policy(session: Session, *, run_id: str) -> tuple[int | None, int | None]:
    """Return the schedule of a run, and after how many failures in a row it is paused.

    None: the schedule was deleted, or does not say.
    """
    statement = (
        select(Schedule.id, Schedule.pause_after_failures)
        .join(Run, Run.schedule_id == Schedule.id)
        .where(Run.id == run_id)
    )
    found = session.execute(statement).one_or_none()
    return (None, None) if found is None else (found[0], found[1])
