"""What a worker does with a run, one function for each transition: begin, end, refuse, give back.

Every transition is a conditional UPDATE; which there are says ``celery_dynbeat.common.run_states``.
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
from celery_dynbeat.db.tables import NODES, RUNS
from celery_dynbeat.db.types import UtcDateTime
from celery_dynbeat.store.runs import execute_dml

_run, _node = RUNS.c, NODES.c


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The start of an attempt: of which run, by whom. ``retries`` is Celery's count.

    ``expected_attempt`` is the attempt that the message follows, 0 for the first. The number of
    the started attempt is ``expected_attempt + 1``.
    """

    run_id: str
    expected_attempt: int
    retries: int
    worker: str
    pid: int


def start(session: Session, beginning: Beginning, *, now: datetime) -> bool:
    """Move a run to running for a message that is the first to begin this attempt."""
    return _begin(session, _START, beginning, now=now)


def restart(session: Session, beginning: Beginning, *, now: datetime) -> bool:
    """Keep a run running, as a new attempt: the worker of the last attempt is dead."""
    return _begin(session, _RESTART, beginning, now=now)


def note_redelivery(session: Session, *, run_id: str, attempt: int) -> bool:
    """Note on a run that its message came again while the node of ``attempt`` lives.

    A lost run becomes running: its node, which was silent, lives and compares it with its pool. The
    message is not needed after that: if the node loses the attempt, the run is sent again.
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


def _begin(session: Session, statement: Update, beginning: Beginning, *, now: datetime) -> bool:
    values = {
        "run": beginning.run_id,
        "expected_attempt": beginning.expected_attempt,
        "tries": beginning.retries,
        "node": beginning.worker,
        "process": beginning.pid,
        "now": now,
    }
    return execute_dml(session, statement, values) == 1


def _beginning(condition: ColumnElement[bool]) -> Update:
    # Not before its node did, though the clock was set back: it would be taken for lost.
    born = (
        select(_node.started_at)
        .where(_node.kind == NodeKind.WORKER, _node.name == bindparam("node"))
        .scalar_subquery()
    )
    present = bindparam("now", type_=UtcDateTime)
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
            started_at=case((born > present, born), else_=present),
            finished_at=None,
            overdue_at=None,
            retry_at=None,
            worker=bindparam("node"),
            worker_pid=bindparam("process"),
            error=None,
            traceback=None,
        )
    )


# Made once: to build such a statement takes longer than to have it answered.
_retry = and_(_run.status.in_(START_RETRY.sources), _run.retries < bindparam("tries"))
_START = _beginning(or_(_run.status.in_(START.sources), _retry))
_RESTART = _beginning(
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

    Another attempt is not touched. A run that was given up as lost is, and one that waits for
    another start because of it: its worker was only slow. ``attempt`` None: whichever this worker
    has in hand (the main process does not know, when it reports a child that is gone).
    """
    statement = _finish(status == Status.RETRYING, attempt is not None)
    values = {"run": run_id, "end": status, "at": at, "reason": error, "trace": traceback}
    values |= {"node": worker} if attempt is None else {"begun": attempt}
    values |= {"again_at": retry_at} if status == Status.RETRYING else {}
    return execute_dml(session, statement, values) == 1


@cache
def _finish(retries: bool, knows_attempt: bool) -> Update:  # noqa: FBT001 - the keys of a cache
    sources = FINISH.sources + (FINISH_BEFORE_RERUN.sources if knows_attempt else ())
    mine = _run.attempt == bindparam("begun") if knows_attempt else _run.worker == bindparam("node")
    return (
        update(RUNS)
        .where(_run.id == bindparam("run"), _run.status.in_(sources), mine)
        .values(
            **_end(retries=retries),
            overdue_at=None,
            # Of a run that was to end and could not be: why (overlaps.note_not_ended).
            error=func.coalesce(
                bindparam("reason"), case((_run.cancelled_at.is_not(None), _run.error))
            ),
            traceback=bindparam("trace"),
        )
    )


def _end(*, retries: bool) -> dict[str, Any]:
    end, at = bindparam("end", type_=_run.status.type), bindparam("at", type_=UtcDateTime)
    if not retries:
        return {"status": end, "finished_at": at, "retry_at": None}
    # Of a run that a newer one replaced, nobody begins another attempt.
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
    """Move a run that nobody has begun to revoked, expired or failed: its message is dropped.

    The UPDATE changes no run in progress, and no run whose last attempt is not
    ``expected_attempt``: the dropped message is a duplicate. None: it is not known.
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
    """Move a running run to sent: the broker was asked to deliver the message again.

    ``overdue_at`` is when beat sends it; at once, if the broker's message came before this.
    """
    has_come = Run.redelivered_attempt == attempt
    statement = (
        update(Run)
        .where(
            Run.id == run_id,
            Run.status.in_(REQUEUE.sources),
            Run.attempt == attempt,
        )
        .values(status=Status.SENT, overdue_at=case((has_come, Run.started_at), else_=overdue_at))
    )
    return execute_dml(session, statement) == 1


def undo_start(
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
            Run.status.in_(REQUEUE.sources),
            Run.worker == worker,
            Run.worker_pid == pid,
            Run.started_at <= before,
        )
        .values(status=Status.SENT, overdue_at=before)
    )
    return execute_dml(session, statement) == 1


def begun_by(session: Session, *, run_id: str, worker: str) -> Row[int, int | None] | None:
    """Return attempt and worker_pid of a run that ``worker`` began last, or None."""
    statement = select(Run.attempt, Run.worker_pid).where(
        Run.id == run_id, Run.worker == worker, Run.status.in_(OWNED)
    )
    return session.execute(statement).one_or_none()
