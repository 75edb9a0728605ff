"""A worker's transitions of runs, one function each.

``celery_dynbeat.common.states`` lists the transitions. Each is one conditional UPDATE. A
function that returns bool returns whether the UPDATE changed the run:

    start, restart     the message starts an attempt; False: it must not, or another was faster
    note_redelivery    the message came again while the attempt runs
    finish             the attempt ended; False: it is not the run's current attempt. A success of a
                       failing schedule gets a ``retry_at``, see ``store.failing``
    refuse             the message of an unstarted run is dropped
    postpone           the task ended its attempt, and beat sends the run again later
    requeue            the broker was asked to deliver the message again
    undo_start         the process did not learn that its commit of ``start`` succeeded

A run that starts and ends as usual costs the two statements of ``starting`` and ``finishing``,
which ``Database.execute`` executes without a session. ``finish_and_start`` is the end of one run
and the start of another in one transaction.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    Update,
    and_,
    bindparam,
    case,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from celery_dynbeat.common.states import (
    FINISH,
    FINISH_BEFORE_RERUN,
    OWNED,
    POSTPONE,
    REDELIVER,
    REFUSE,
    REQUEUE,
    RESTART,
    START,
    START_RETRY,
    UNDO_START,
    Status,
    Wait,
)
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.models import NODES, RUNS, SCHEDULES, NodeKind, Run
from celery_dynbeat.db.statements import is_one_of
from celery_dynbeat.db.types import UtcDateTime
from celery_dynbeat.store.runs import error_line, execute_dml, with_error_line

_run, _node, _schedule = RUNS.c, NODES.c, SCHEDULES.c
#: A statement and its parameters.
Parametrised: TypeAlias = tuple[Update, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStart:
    """The start of an attempt of a run by a worker process. ``retries`` is Celery's count.

    ``expected_attempt`` is the attempt that the message follows, 0 for the first. The number of the
    started attempt is ``expected_attempt + 1``. ``replaces`` is true if that attempt has ended,
    because it sent the message in its place.
    """

    run_id: str
    expected_attempt: int
    retries: int
    worker: str
    pid: int
    replaces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """The end of an attempt: succeeded, failed, revoked, or retrying until ``retry_at``.

    If ``sent_by_beat`` is true, beat sends that retry, and ``retries`` is the count of the ended
    attempt, if it is known. Otherwise, Celery has sent it. ``attempt=None`` means the current
    attempt of this worker, if the process ``pid`` executes it or ``pid`` is None. The main process
    does not know the number when it reports that a child has exited. ``note=None`` keeps the note
    of an earlier attempt.
    """

    run_id: str
    attempt: int | None
    worker: str
    status: Status
    at: datetime
    error: str | None = None
    traceback: str | None = None
    note: str | None = None
    retry_at: datetime | None = None
    sent_by_beat: bool = False
    retries: int | None = None
    pid: int | None = None


def start(session: Session, attempt_start: AttemptStart, *, now: datetime) -> bool:
    """Move a run to running, unless another message has started this attempt."""
    return execute_dml(session, *starting(attempt_start, now=now)) == 1


def starting(attempt_start: AttemptStart, *, now: datetime) -> Parametrised:
    """Return the statement of ``start``, whose row count is 1 if the run was started."""
    statement = _START_REPLACEMENT if attempt_start.replaces else _START
    return statement, _start_values(attempt_start, now)


def restart(session: Session, attempt_start: AttemptStart, *, now: datetime) -> bool:
    """Start a new attempt of a running run, because the worker of the last attempt is dead."""
    return execute_dml(session, _RESTART, _start_values(attempt_start, now)) == 1


def note_redelivery(session: Session, *, run_id: str, attempt: int) -> bool:
    """Record that a run's message was delivered again while the node of ``attempt`` is alive.

    A lost run becomes running again, because its node was only silent and compares its runs with
    its pool. The message can then be dropped: if the node loses the attempt, beat sends the run
    again.
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


def _start_values(attempt_start: AttemptStart, now: datetime) -> Mapping[str, Any]:
    return {
        "run": attempt_start.run_id,
        "expected_attempt": attempt_start.expected_attempt,
        "tries": attempt_start.retries,
        "node": attempt_start.worker,
        "process": attempt_start.pid,
        "now": now,
    }


def _literal(status: Status) -> ColumnElement[str]:
    return literal_column(f"'{status.value}'", type_=_run.status.type)


def _start_statement(condition: ColumnElement[bool]) -> Update:
    # Even if the clock was set back, the start is never before the registration of the node.
    # Otherwise, the run would count as lost.
    node_started_at = (
        select(_node.started_at)
        .where(
            _node.kind == literal_column(f"'{NodeKind.WORKER.value}'"),
            _node.name == bindparam("node"),
        )
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
            status=_literal(Status.RUNNING),
            attempt=_run.attempt + literal_column("1"),
            retries=bindparam("tries"),
            started_at=case((node_started_at > current, node_started_at), else_=current),
            finished_at=null(),
            overdue_at=null(),
            retry_at=null(),
            worker=bindparam("node"),
            worker_pid=bindparam("process"),
            error=null(),
            traceback=null(),
        )
    )


# These statements are constants, because building one takes longer than executing it.
_retry = and_(is_one_of(_run.status, START_RETRY.sources), _run.retries < bindparam("tries"))
_START = _start_statement(or_(is_one_of(_run.status, START.sources), _retry))
_START_REPLACEMENT = _start_statement(
    is_one_of(_run.status, (*START.sources, *START_RETRY.sources))
)
_RESTART = _start_statement(
    and_(is_one_of(_run.status, RESTART.sources), _run.retries == bindparam("tries")),
)


def finish(session: Session, attempt_end: AttemptEnd) -> bool:
    """End an attempt.

    Other attempts do not change. A lost run changes, as does a run that waits for a new start
    because it was lost. In both cases, the worker was only slow.
    """
    return execute_dml(session, *finishing(attempt_end)) == 1


def finishing(attempt_end: AttemptEnd) -> Parametrised:
    """Return the statement of ``finish``, whose row count is 1 if the attempt was ended."""
    attempt, status = attempt_end.attempt, attempt_end.status
    values = {
        "ended": attempt_end.run_id,
        "at": attempt_end.at,
        "reason": attempt_end.error,
        "trace": attempt_end.traceback,
    }
    knows_process = attempt is None and attempt_end.pid is not None
    values |= {"by": attempt_end.worker} if attempt is None else {"begun": attempt}
    values |= {"executed_by": attempt_end.pid} if knows_process else {}
    if status == Status.RETRYING:
        line = error_line(attempt_end.error, at=attempt_end.at)
        values |= {"again_at": attempt_end.retry_at, "line": line}
    knows_retries = attempt_end.retries is not None
    values |= {"had_retries": attempt_end.retries} if knows_retries else {}
    has_note = attempt_end.note is not None
    values |= {"said": attempt_end.note} if has_note else {}
    known = _Known(attempt is not None, knows_process, knows_retries)
    return _finish(status, known, attempt_end.sent_by_beat, has_note), values


def finish_and_start(
    database: Database, attempt_end: AttemptEnd, attempt_start: AttemptStart, *, now: datetime
) -> tuple[bool, bool]:
    """Do ``finish`` and ``start`` of two runs in one transaction; return what each returned.

    If the database supports UPDATE in a WITH clause, this is one statement.
    """
    assert attempt_end.run_id != attempt_start.run_id  # noqa: S101 - one statement changes a row once
    finish_statement, finish_values = finishing(attempt_end)
    start_statement, start_values = starting(attempt_start, now=now)
    if database.has_writing_cte:
        both = _both(finish_statement, start_statement)
        row = database.execute_and_read(both, {**finish_values, **start_values})
        return row.finished == 1, row.started == 1

    def work(session: Session) -> tuple[bool, bool]:
        started = execute_dml(session, start_statement, start_values) == 1
        return execute_dml(session, finish_statement, finish_values) == 1, started

    return database.run(work)


@cache
def _both(finish_statement: Update, start_statement: Update) -> Select[tuple[int, int]]:
    counts = [
        select(func.count())
        .select_from(statement.returning(_run.id).cte(name))
        .scalar_subquery()
        .label(name)
        # In this order, PostgreSQL starts first. The start may wait for the beat that is confirming
        # the run, and the confirmation of a batch for each row that this transaction has changed.
        for name, statement in (("started", start_statement), ("finished", finish_statement))
    ]
    return select(*counts)


class _Known(NamedTuple):
    """Which values of an AttemptEnd are not None."""

    attempt: bool
    process: bool
    retries: bool


@cache
def _finish(
    status: Status,
    known: _Known,
    sent_by_beat: bool,  # noqa: FBT001 - keys of the cache
    has_note: bool,  # noqa: FBT001
) -> Update:
    sources = FINISH.sources + (FINISH_BEFORE_RERUN.sources if known.attempt else ())
    mine = [_run.attempt == bindparam("begun") if known.attempt else _run.worker == bindparam("by")]
    if known.process:
        mine.append(_run.worker_pid == bindparam("executed_by"))
    if known.retries:
        # A second write must not repeat a retry that beat has sent.
        mine.append(_run.retries == bindparam("had_retries"))
    return (
        update(RUNS)
        .where(_run.id == bindparam("ended"), is_one_of(_run.status, sources), *mine)
        .values(
            **{"overdue_at": null(), **_end(status, sent_by_beat=sent_by_beat)},
            # A cancelled run keeps its termination error (unfinished.note_termination_failure).
            error=func.coalesce(
                bindparam("reason"), case((_run.cancelled_at.is_not(None), _run.error))
            ),
            traceback=bindparam("trace"),
            **({"note": bindparam("said")} if has_note else {}),
        )
    )


def _end(status: Status, *, sent_by_beat: bool) -> dict[str, Any]:
    end, at = _literal(status), bindparam("at", type_=UtcDateTime)
    if status == Status.SUCCEEDED:
        # Read without a lock, also on MySQL and MariaDB at READ COMMITTED. Not EXISTS: PostgreSQL
        # could hash all failing schedules.
        failing_since = (
            select(_schedule.failing_since)
            .where(_schedule.id == _run.schedule_id)
            .scalar_subquery()
        )
        retry_at = case((failing_since.is_not(None), at), else_=null())
        return {"status": end, "finished_at": at, "retry_at": retry_at}
    if status != Status.RETRYING:
        return {"status": end, "finished_at": at, "retry_at": null()}
    # A run that a newer one replaced starts no other attempt.
    replaced = _run.cancelled_at.is_not(None)
    again_at = bindparam("again_at", type_=UtcDateTime)
    retry_at = case((replaced, null()), else_=again_at)
    return {
        "status": case((replaced, _literal(Status.REVOKED)), else_=end),
        "finished_at": case((replaced, at), else_=null()),
        "retry_at": retry_at,
        "earlier_errors": with_error_line(bindparam("line", type_=_run.error.type)),
        # The sweep sends overdue runs.
        **({"overdue_at": retry_at} if sent_by_beat else {}),
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


def postpone(
    session: Session, *, run_id: str, attempt: int, at: datetime, until: datetime, note: str | None
) -> bool:
    """Move a run to pending, because its task has ended the attempt until an instant.

    Beat sends the run at ``until``. A run that a newer one replaces is revoked.
    """
    replaced = Run.cancelled_at.is_not(None)
    values = {
        "status": case((replaced, Status.REVOKED), else_=Status.PENDING),
        "finished_at": case((replaced, literal(at, UtcDateTime())), else_=null()),
        "overdue_at": case((replaced, null()), else_=literal(until, UtcDateTime())),
        # Beat may have died before it confirmed the message. Before started_at, because MySQL sets
        # the columns in this order.
        "sent_at": func.coalesce(Run.sent_at, Run.started_at),
        "started_at": case((replaced, Run.started_at), else_=null()),
        "postponements": Run.postponements + 1,
        "waited_for": Wait.POSTPONED,
        "ready_at": None,
        "error": case((replaced, Run.error), else_=null()),
    }
    values |= {} if note is None else {"note": note}
    statement = (
        update(Run)
        .where(Run.id == run_id, Run.status.in_(POSTPONE.sources), Run.attempt == attempt)
        .values(values)
    )
    return execute_dml(session, statement) == 1


def undo_start(
    session: Session, *, run_id: str, worker: str, pid: int | None, before: datetime
) -> bool:
    """Move a run that this process started at or ``before`` an instant back to sent.

    The process did not learn that its commit succeeded, so the task did not run. A later start by
    the same process stays. Beat resends the message, and the first message starts the run. A lost
    run is also sent again, because its node was only silent.
    """
    statement = (
        update(Run)
        .where(
            Run.id == run_id,
            Run.status.in_(UNDO_START.sources),
            Run.worker == worker,
            Run.worker_pid == pid,
            Run.started_at <= before,
        )
        .values(status=Status.SENT, overdue_at=before, finished_at=None, retry_at=None, error=None)
    )
    return execute_dml(session, statement) == 1


def owned_attempt(session: Session, *, run_id: str, worker: str) -> Row[int, int | None] | None:
    """Return attempt and worker_pid of a run whose last attempt ``worker`` started, or None."""
    statement = select(Run.attempt, Run.worker_pid).where(
        Run.id == run_id, Run.worker == worker, Run.status.in_(OWNED)
    )
    return session.execute(statement).one_or_none()
