"""A worker's transitions of runs, one function each.

``celery_dynbeat.common.run_states`` lists the transitions. Each is one conditional UPDATE. A
function that returns bool returns whether the UPDATE changed the run:

    start, restart     the message starts an attempt; False: it must not, or another was faster
    note_redelivery    the message came again while the attempt runs
    finish             the attempt ended; False: it is not the run's current attempt. A success of a
                       failing schedule gets a ``retry_at``, see ``store.failing``
    refuse             the message of an unstarted run is dropped
    requeue            the broker was asked to deliver the message again
    undo_start         the process did not learn that its commit of ``start`` succeeded
"""

from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    Update,
    and_,
    bindparam,
    case,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from celery_dynbeat.common.run_states import (
    FINISH,
    FINISH_BEFORE_RERUN,
    OWNED,
    REDELIVER,
    REFUSE,
    REQUEUE,
    RESTART,
    START,
    START_RETRY,
    Status,
)
from celery_dynbeat.db.models import NodeKind, Run
from celery_dynbeat.db.tables import NODES, RUNS, SCHEDULES
from celery_dynbeat.db.types import UtcDateTime
from celery_dynbeat.store.runs import execute_dml

_run, _node, _schedule = RUNS.c, NODES.c, SCHEDULES.c


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStart:
    """The start of an attempt of a run by a worker process. ``retries`` is Celery's count.

    ``expected_attempt`` is the attempt that the message follows, 0 for the first. The number of
    the started attempt is ``expected_attempt + 1``. ``replaces``: that attempt has ended, because
    it sent the message in its place.
    """

    run_id: str
    expected_attempt: int
    retries: int
    worker: str
    pid: int
    replaces: bool = False


def start(session: Session, attempt_start: AttemptStart, *, now: datetime) -> bool:
    """Move a run to running, unless another message has started this attempt."""
    statement = _START_REPLACEMENT if attempt_start.replaces else _START
    return _start(session, statement, attempt_start, now=now)


def restart(session: Session, attempt_start: AttemptStart, *, now: datetime) -> bool:
    """Start a new attempt of a running run, because the worker of the last attempt is dead."""
    return _start(session, _RESTART, attempt_start, now=now)


def note_redelivery(session: Session, *, run_id: str, attempt: int) -> bool:
    """Record that a run's message was delivered again while the node of ``attempt`` is alive.

    A lost run becomes running again: its node was only silent, and compares its runs with its pool.
    The message can then be dropped: if the node loses the attempt, beat sends the run again.
    """
    statement = (
        update(Run)
        .where(Run.id == run_id, Run.attempt == attempt, Run.status.in_(REDELIVER.sources))
        .values(
            redelivered_attempt=attempt,
            status=Status.RUNNING,
            finished_at=None,
            error=None,
        )
    )
    return execute_dml(session, statement) == 1


def _start(
    session: Session, statement: Update, attempt_start: AttemptStart, *, now: datetime
) -> bool:
    values = {
        "run": attempt_start.run_id,
        "expected_attempt": attempt_start.expected_attempt,
        "tries": attempt_start.retries,
        "node": attempt_start.worker,
        "process": attempt_start.pid,
        "now": now,
    }
    return execute_dml(session, statement, values) == 1


def _start_statement(condition: ColumnElement[bool]) -> Update:
    # The start is never before the registration of its node, even if the clock was set back: the
    # run would count as lost.
    node_started_at = (
        select(_node.started_at)
        .where(_node.kind == NodeKind.WORKER, _node.name == bindparam("node"))
        .scalar_subquery()
    )
    current = bindparam("now", type_=UtcDateTime)
    return (
        update(RUNS)
        .where(
            _run.id == bindparam("run"),
            _run.attempt == bindparam("expected_attempt"),
            _run.cancelled_at.is_(None),
            condition,
        )
        .values(
            status=Status.RUNNING,
            attempt=_run.attempt + 1,
            retries=bindparam("tries"),
            started_at=case((node_started_at > current, node_started_at), else_=current),
            finished_at=None,
            overdue_at=None,
            retry_at=None,
            worker=bindparam("node"),
            worker_pid=bindparam("process"),
            error=None,
            traceback=None,
        )
    )


# Constants: building such a statement takes longer than executing it.
_retry = and_(_run.status.in_(START_RETRY.sources), _run.retries < bindparam("tries"))
_START = _start_statement(or_(_run.status.in_(START.sources), _retry))
_START_REPLACEMENT = _start_statement(
    _run.status.in_({*START.sources, *START_RETRY.sources}),
)
_RESTART = _start_statement(
    and_(_run.status.in_(RESTART.sources), _run.retries == bindparam("tries")),
)


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

    Other attempts do not change. A lost run changes, and a run that waits for a new start because
    it was lost: its worker was only slow. ``attempt`` None means the current attempt of this
    worker. The main process does not know the number when it reports that a child has exited.
    """
    statement = _finish(status, attempt is not None)
    values = {"run": run_id, "end": status, "at": at, "reason": error, "trace": traceback}
    values |= {"node": worker} if attempt is None else {"begun": attempt}
    values |= {"again_at": retry_at} if status == Status.RETRYING else {}
    return execute_dml(session, statement, values) == 1


@cache
def _finish(status: Status, knows_attempt: bool) -> Update:  # noqa: FBT001 - keys of the cache
    sources = FINISH.sources + (FINISH_BEFORE_RERUN.sources if knows_attempt else ())
    mine = _run.attempt == bindparam("begun") if knows_attempt else _run.worker == bindparam("node")
    return (
        update(RUNS)
        .where(_run.id == bindparam("run"), _run.status.in_(sources), mine)
        .values(
            **_end(status),
            overdue_at=None,
            # A cancelled run keeps its termination error (overlaps.note_termination_failure).
            error=func.coalesce(
                bindparam("reason"), case((_run.cancelled_at.is_not(None), _run.error))
            ),
            traceback=bindparam("trace"),
        )
    )


def _end(status: Status) -> dict[str, Any]:
    end, at = bindparam("end", type_=_run.status.type), bindparam("at", type_=UtcDateTime)
    if status == Status.SUCCEEDED:
        # Read without a lock, also on MySQL and MariaDB at READ COMMITTED. Not EXISTS: PostgreSQL
        # could hash all failing schedules.
        failing_since = (
            select(_schedule.failing_since)
            .where(_schedule.id == _run.schedule_id)
            .scalar_subquery()
        )
        retry_at = case((failing_since.is_not(None), at), else_=None)
        return {"status": end, "finished_at": at, "retry_at": retry_at}
    if status != Status.RETRYING:
        return {"status": end, "finished_at": at, "retry_at": None}
    # A run that a newer one replaced starts no other attempt.
    replaced = _run.cancelled_at.is_not(None)
    again_at = bindparam("again_at", type_=UtcDateTime)
    return {
        "status": case((replaced, Status.REVOKED), else_=end),
        "finished_at": case((replaced, at), else_=None),
        "retry_at": case((replaced, None), else_=again_at),
    }


def refuse(
    session: Session,
    *,
    run_id: str,
    expected_attempt: int | None,
    status: Status,
    at: datetime,
    error: str,
) -> bool:
    """Move an unstarted run to revoked, expired or failed, because its message is dropped.

    The UPDATE changes no running run, and no run whose last attempt is not ``expected_attempt``:
    the dropped message was a duplicate. None means that the attempt is not known.
    """
    statement = (
        update(Run)
        .where(Run.id == run_id, Run.status.in_(REFUSE.sources))
        .values(status=status, finished_at=at, overdue_at=None, retry_at=None, error=error)
    )
    if expected_attempt is not None:
        statement = statement.where(Run.attempt == expected_attempt)
    return execute_dml(session, statement) == 1


def requeue(session: Session, *, run_id: str, attempt: int, overdue_at: datetime) -> bool:
    """Move a running run to sent, because the broker was asked to deliver the message again.

    ``overdue_at`` is when beat resends the run. Beat resends it at once if the broker's message
    came before this UPDATE, because the guard has dropped that message.
    """
    was_redelivered = Run.redelivered_attempt == attempt
    statement = (
        update(Run)
        .where(
            Run.id == run_id,
            Run.status.in_(REQUEUE.sources),
            Run.attempt == attempt,
        )
        .values(
            status=Status.SENT, overdue_at=case((was_redelivered, Run.started_at), else_=overdue_at)
        )
    )
    return execute_dml(session, statement) == 1


def undo_start(
    session: Session, *, run_id: str, worker: str, pid: int | None, before: datetime
) -> bool:
    """Move a run back to sent that this process started at or ``before`` an instant.

    The process did not learn that its commit succeeded, so the task did not run. A later start by
    the same process stays. Beat resends the message, and the first message starts the run.
    """
    statement = (
        update(Run)
        .where(
            Run.id == run_id,
            Run.status.in_(REQUEUE.sources),
            Run.worker == worker,
            Run.worker_pid == pid,
            Run.started_at <= before,
        )
        .values(status=Status.SENT, overdue_at=before)
    )
    return execute_dml(session, statement) == 1


def owned_attempt(session: Session, *, run_id: str, worker: str) -> Row[int, int | None] | None:
    """Return attempt and worker_pid of a run whose last attempt ``worker`` started, or None."""
    statement = select(Run.attempt, Run.worker_pid).where(
        Run.id == run_id, Run.worker == worker, Run.status.in_(OWNED)
    )
    return session.execute(statement).one_or_none()
