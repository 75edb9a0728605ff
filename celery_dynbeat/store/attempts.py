"""What a worker does with a run, one function for each transition: begin, end, refuse, give back.

Every transition is a conditional UPDATE; which there are says ``celery_dynbeat.states``.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import and_, case, literal, or_, select, update
from sqlalchemy.orm import Session

from celery_dynbeat.db.models import Node, NodeKind, Run
from celery_dynbeat.db.types import UtcDateTime
from celery_dynbeat.states import (
    FINISH,
    FINISH_BEFORE_RERUN,
    GIVE_BACK,
    REFUSE,
    RESTART,
    START,
    START_RETRY,
    Status,
)
from celery_dynbeat.store.runs import affected


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The start of an attempt: of which run, by whom. ``retries`` is Celery's count.

    ``after`` is the attempt that the message follows, 0 for the first; this one is ``after + 1``.
    """

    run_id: str
    after: int
    retries: int
    worker: str
    pid: int


def start(session: Session, beginning: Beginning, *, now: datetime) -> bool:
    """Move a run to running for a message that is the first to begin this attempt."""
    retry = and_(Run.status.in_(START_RETRY.sources), Run.retries < beginning.retries)
    return _begin(session, beginning, or_(Run.status.in_(START.sources), retry), now=now)


def restart(session: Session, beginning: Beginning, *, now: datetime) -> bool:
    """Keep a run running, as a new attempt: ``beginning.after`` has died with its worker."""
    same = Run.status.in_(RESTART.sources) & (Run.retries == beginning.retries)
    return _begin(session, beginning, same, now=now)


def _begin(session: Session, beginning: Beginning, condition: Any, *, now: datetime) -> bool:
    # Not before its node did, though the clock was set back: it would be taken for lost.
    born = (
        select(Node.started_at)
        .where(Node.kind == NodeKind.WORKER, Node.name == beginning.worker)
        .scalar_subquery()
    )
    present = literal(now, UtcDateTime)
    statement = (
        update(Run)
        .where(
            Run.id == beginning.run_id,
            Run.attempt == beginning.after,
            Run.cancelled_at.is_(None),
            condition,
        )
        .values(
            status=Status.RUNNING,
            attempt=beginning.after + 1,
            retries=beginning.retries,
            started_at=case((born > present, born), else_=present),
            finished_at=None,
            overdue_at=None,
            retry_at=None,
            worker=beginning.worker,
            worker_pid=beginning.pid,
            error=None,
            traceback=None,
        )
    )
    return affected(session, statement) == 1


def finish(
    session: Session,
    *,
    run_id: str,
    attempt: int | None,
    worker: str,
    status: Status,
    at: datetime,
    error: str | None,
    traceback: str | None,
    retry_at: datetime | None = None,
) -> bool:
    """End an attempt: the run succeeded, failed, was revoked, or is retrying until ``retry_at``.

    Another attempt is not touched. A run that was given up as lost is, and one that waits for
    another start because of it: its worker was only slow. ``attempt`` None: whichever this worker
    has in hand (the main process does not know, when it reports a child that is gone).
    """
    sources = FINISH.sources
    if attempt is not None:
        sources += FINISH_BEFORE_RERUN.sources
    statement = (
        update(Run)
        .where(
            Run.id == run_id,
            Run.status.in_(sources),
            Run.worker == worker if attempt is None else Run.attempt == attempt,
        )
        .values(**_end(status, at, retry_at), overdue_at=None, error=error, traceback=traceback)
    )
    return affected(session, statement) == 1


def _end(status: Status, at: datetime, retry_at: datetime | None) -> dict[str, Any]:
    if status != Status.RETRYING:
        return {"status": status, "finished_at": at, "retry_at": None}
    # Of a run that a newer one replaced, nobody begins another attempt.
    replaced = Run.cancelled_at.is_not(None)
    return {
        "status": case((replaced, Status.REVOKED), else_=Status.RETRYING),
        "finished_at": case((replaced, literal(at, UtcDateTime)), else_=None),
        "retry_at": case((replaced, None), else_=literal(retry_at, UtcDateTime)),
    }


def refuse(
    session: Session, *, run_id: str, after: int | None, status: Status, at: datetime, error: str
) -> bool:
    """Move a run that nobody has begun to revoked, expired or failed: its message is dropped.

    A run in progress is not touched, nor one for which a message of another attempt than ``after``
    is under way: what was dropped is a duplicate then. None: it is not known.
    """
    statement = (
        update(Run)
        .where(Run.id == run_id, Run.status.in_(REFUSE.sources))
        .values(status=status, finished_at=at, overdue_at=None, retry_at=None, error=error)
    )
    if after is not None:
        statement = statement.where(Run.attempt == after)
    return affected(session, statement) == 1


def give_back(session: Session, *, run_id: str, attempt: int, overdue_at: datetime) -> bool:
    """Move a running run to sent: the broker was asked to deliver the message again."""
    statement = (
        update(Run)
        .where(
            Run.id == run_id,
            Run.status.in_(GIVE_BACK.sources),
            Run.attempt == attempt,
        )
        .values(status=Status.SENT, overdue_at=overdue_at)
    )
    return affected(session, statement) == 1


def disown(
    session: Session, *, run_id: str, worker: str, pid: int | None, before: datetime
) -> bool:
    """Move a run back to sent that a process was marked to have begun ``before`` an instant.

    It never learned that its commit took place. What it began later is its own; beat sends the
    message again, and whichever comes first starts the run.
    """
    statement = (
        update(Run)
        .where(
            Run.id == run_id,
            Run.status.in_(GIVE_BACK.sources),
            Run.worker == worker,
            Run.worker_pid == pid,
            Run.started_at <= before,
        )
        .values(status=Status.SENT, overdue_at=before)
    )
    return affected(session, statement) == 1
