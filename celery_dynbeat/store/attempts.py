"""What a worker does with a run, one function for each transition: begin, end, refuse, give back.

Every transition is a conditional UPDATE; the state machine is drawn in
docs/explanation/run-states.md.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import case, literal, select, update
from sqlalchemy.orm import Session

from celery_dynbeat.db.models import UNSTARTED, Node, NodeKind, Run, Status
from celery_dynbeat.db.types import UtcDateTime
from celery_dynbeat.store.runs import affected

_FINAL = (Status.SUCCEEDED, Status.FAILED, Status.REVOKED, Status.EXPIRED, Status.SKIPPED)


def start(
    session: Session,
    *,
    run_id: str,
    retries: int,
    worker: str,
    pid: int,
    now: datetime,
) -> bool:
    """Move a run to running, for a message that has not been started before.

    ``retries`` is Celery's count in the message. A first message starts only a run that has not
    started. A retry starts once for each count: the higher count proves that the attempt before it
    ended.
    """
    fresh = Run.status.in_(UNSTARTED) if retries == 0 else Run.status.not_in(_FINAL)
    condition = fresh if retries == 0 else fresh & (Run.retries < retries)
    condition &= Run.cancelled_at.is_(None)
    begun = _Begun(retries=retries, worker=worker, pid=pid, now=now)
    return _start(session, run_id, condition, begun)


def restart(
    session: Session,
    *,
    run_id: str,
    retries: int,
    started_at: datetime | None,
    worker: str,
    pid: int,
    now: datetime,
) -> bool:
    """Keep a run running, as a new attempt after the one begun at ``started_at`` has died."""
    condition = (
        Run.status.in_((Status.RUNNING, Status.LOST))
        & (Run.retries == retries)
        & (Run.started_at == started_at)
        & Run.cancelled_at.is_(None)
    )
    begun = _Begun(retries=retries, worker=worker, pid=pid, now=now)
    return _start(session, run_id, condition, begun)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    retries: int
    worker: str
    pid: int
    now: datetime


def _start(session: Session, run_id: str, condition: Any, begun: _Begun) -> bool:
    # Not before its node did, though the clock was set back: it would be taken for lost.
    born = (
        select(Node.started_at)
        .where(Node.kind == NodeKind.WORKER, Node.name == begun.worker)
        .scalar_subquery()
    )
    now = literal(begun.now, UtcDateTime)
    statement = (
        update(Run)
        .where(Run.id == run_id, condition)
        .values(
            status=Status.RUNNING,
            attempt=Run.attempt + 1,
            retries=begun.retries,
            started_at=case((born > now, born), else_=now),
            finished_at=None,
            overdue_at=None,
            worker=begun.worker,
            worker_pid=begun.pid,
            error=None,
            traceback=None,
        )
    )
    return affected(session, statement) == 1


def finish(
    session: Session,
    *,
    run_id: str,
    retries: int | None,
    worker: str,
    status: Status,
    at: datetime,
    error: str | None,
    traceback: str | None,
) -> bool:
    """Move a running run to succeeded, failed or retrying, for the attempt of this worker.

    Another worker's attempt, or a later one, is not touched. A run that was given up as lost is:
    its worker was only slow. ``retries`` None: whichever attempt of this worker it is (the main
    process does not know, when it reports a child that is gone).
    """
    ended = None if status == Status.RETRYING else at
    statement = (
        update(Run)
        .where(
            Run.id == run_id,
            Run.status.in_((Status.RUNNING, Status.LOST)),
            Run.worker == worker,
        )
        .values(status=status, finished_at=ended, error=error, traceback=traceback)
    )
    if retries is not None:
        statement = statement.where(Run.retries == retries)
    return affected(session, statement) == 1


def refuse(session: Session, *, run_id: str, status: Status, at: datetime, error: str) -> bool:
    """Move a run that is not running to revoked, expired or failed: its message is dropped.

    A run in progress is not touched: the message may be a duplicate of the one that started it.
    """
    statement = (
        update(Run)
        .where(Run.id == run_id, Run.status.in_((*UNSTARTED, Status.RETRYING)))
        .values(status=status, finished_at=at, overdue_at=None, error=error)
    )
    return affected(session, statement) == 1


def give_back(session: Session, *, run_id: str, retries: int, overdue_at: datetime) -> bool:
    """Move a running run to sent: the broker was asked to deliver the message again."""
    statement = (
        update(Run)
        .where(Run.id == run_id, Run.status == Status.RUNNING, Run.retries == retries)
        .values(status=Status.SENT, overdue_at=overdue_at)
    )
    return affected(session, statement) == 1
