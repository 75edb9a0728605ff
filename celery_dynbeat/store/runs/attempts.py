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
which ``Database.execute`` executes without a session. ``succeed`` ends many runs at once.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Integer,
    Row,
    Text,
    Update,
    and_,
    bindparam,
    case,
    cast,
    column,
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
from celery_dynbeat.store.runs import change, error_line, execute_dml, lock_free, with_error_line

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
    running = {"status": Status.RUNNING, "finished_at": None, "error": None}
    values = {**running, "redelivered_attempt": attempt}
    return change(session, run_id, REDELIVER.sources, Run.attempt == attempt, **values) == 1


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
    end, is_known = attempt_end, attempt_end.attempt is not None
    values = {
        "ended": end.run_id,
        "begun": end.attempt,
        "by": None if is_known else end.worker,
        "executed_by": None if is_known else end.pid,
        "had_retries": end.retries,
        "at": end.at,
        "reason": end.error,
        "trace": end.traceback,
        "said": end.note,
    }
    if end.status == Status.SUCCEEDED:
        return _SUCCEED, values
    if end.status != Status.RETRYING:
        return _END, {**values, "end_status": end.status}
    values |= {"again_at": end.retry_at, "send_at": end.retry_at if end.sent_by_beat else None}
    return _RETRY, {**values, "line": error_line(end.error, at=end.at)}


def succeed(database: Database, ends: Sequence[AttemptEnd]) -> Collection[str]:
    """End attempts that succeeded, one for each run id; return the runs that changed.

    Their numbers are known. A run that another transaction has locked does not change. This is one
    statement on PostgreSQL, and one transaction on the other databases.
    """
    if database.capabilities.has_lateral:
        values = {
            "ids": [end.run_id for end in ends],
            "attempts": [end.attempt for end in ends],
            "ats": [end.at for end in ends],
            "notes": [end.note for end in ends],
        }
        changed: Collection[str] = database.execute_returning(_SUCCEED_ALL, values)
        return changed

    def work(session: Session) -> Collection[str]:
        free = set(lock_free(session, [end.run_id for end in ends]))
        return [end.run_id for end in ends if end.run_id in free and finish(session, end)]

    return database.run(work, follow_indexes=False)


def _finish_statement(**values: Any) -> Update:
    """Return the UPDATE of one kind of end. A parameter that is None makes no condition."""
    begun, pid = _parameter("begun", _run.attempt), _parameter("executed_by", _run.worker_pid)
    by = _parameter("by", _run.worker)
    return (
        update(RUNS)
        .where(
            _run.id == bindparam("ended"),
            or_(
                is_one_of(_run.status, FINISH.sources),
                and_(is_one_of(_run.status, FINISH_BEFORE_RERUN.sources), _run.attempt == begun),
            ),
            _run.attempt == func.coalesce(begun, _run.attempt),
            _run.worker.is_not_distinct_from(func.coalesce(by, _run.worker)),
            _run.worker_pid.is_not_distinct_from(func.coalesce(pid, _run.worker_pid)),
            # A second write must not repeat a retry that beat has sent.
            _run.retries == func.coalesce(_parameter("had_retries", _run.retries), _run.retries),
        )
        .values(
            # A cancelled run keeps its termination error (unfinished.note_termination_failure).
            error=func.coalesce(
                _parameter("reason", _run.error), case((_run.cancelled_at.is_not(None), _run.error))
            ),
            traceback=bindparam("trace"),
            note=func.coalesce(_parameter("said", _run.note), _run.note),
            **values,
        )
    )


def _parameter(name: str, column: ColumnElement[Any]) -> ColumnElement[Any]:
    return bindparam(name, type_=column.type)


_at = bindparam("at", type_=UtcDateTime)
# Read without a lock, also on MySQL and MariaDB at READ COMMITTED. Not EXISTS: PostgreSQL could
# hash all failing schedules.
_failing_since = (
    select(_schedule.failing_since).where(_schedule.id == _run.schedule_id).scalar_subquery()
)
_SUCCEED = _finish_statement(
    status=_literal(Status.SUCCEEDED),
    finished_at=_at,
    retry_at=case((_failing_since.is_not(None), _at), else_=null()),
    overdue_at=null(),
)


_types = {"id": _run.id.type, "attempt": Integer(), "at": UtcDateTime(), "note": Text()}
_ends = (
    func.unnest(*(cast(bindparam(f"{name}s"), ARRAY(type_)) for name, type_ in _types.items()))
    .table_valued(*(column(name, type_) for name, type_ in _types.items()))
    .render_derived()
)
_free = (
    select(_ends)
    .join_from(_ends, RUNS, _run.id == _ends.c.id)
    .with_for_update(of=RUNS, key_share=True, skip_locked=True)
    .cte("free")
)
_SUCCEED_ALL = (
    update(RUNS)
    .where(
        _run.id == _free.c.id,
        _run.attempt == _free.c.attempt,
        is_one_of(_run.status, (*FINISH.sources, *FINISH_BEFORE_RERUN.sources)),
    )
    .values(
        status=_literal(Status.SUCCEEDED),
        finished_at=_free.c.at,
        retry_at=case((_failing_since.is_not(None), _free.c.at), else_=null()),
        overdue_at=null(),
        error=case((_run.cancelled_at.is_not(None), _run.error)),
        traceback=null(),
        note=func.coalesce(_free.c.note, _run.note),
    )
    .returning(_run.id)
)
_END = _finish_statement(
    status=_parameter("end_status", _run.status),
    finished_at=_at,
    retry_at=null(),
    overdue_at=null(),
)
# A run that a newer one replaced starts no other attempt.
_replaced = _run.cancelled_at.is_not(None)
_RETRY = _finish_statement(
    status=case((_replaced, _literal(Status.REVOKED)), else_=_literal(Status.RETRYING)),
    finished_at=case((_replaced, _at), else_=null()),
    retry_at=case((_replaced, null()), else_=_parameter("again_at", _run.retry_at)),
    # The sweep sends overdue runs.
    overdue_at=case((_replaced, null()), else_=_parameter("send_at", _run.overdue_at)),
    earlier_errors=with_error_line(_parameter("line", _run.error)),
)


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
    expected = () if expected_attempt is None else (Run.attempt == expected_attempt,)
    refused = {"status": status, "finished_at": at, "error": error}
    refused |= {"overdue_at": None, "retry_at": None}
    return change(session, run_id, REFUSE.sources, *expected, **refused) == 1


def requeue(session: Session, *, run_id: str, attempt: int, overdue_at: datetime) -> bool:
    """Move a running run to sent, because the broker was asked to deliver the message again.

    ``overdue_at`` is when beat resends the run. Beat resends it at once if the broker's message
    came before this UPDATE, because the guard has dropped that message.
    """
    was_redelivered = Run.redelivered_attempt == attempt
    at = case((was_redelivered, Run.started_at), else_=overdue_at)
    sent = {"status": Status.SENT, "overdue_at": at}
    return change(session, run_id, REQUEUE.sources, Run.attempt == attempt, **sent) == 1


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
    return change(session, run_id, POSTPONE.sources, Run.attempt == attempt, **values) == 1


def undo_start(
    session: Session, *, run_id: str, worker: str, pid: int | None, before: datetime
) -> bool:
    """Move a run that this process started at or ``before`` an instant back to sent.

    The process did not learn that its commit succeeded, so the task did not run. A later start by
    the same process stays. Beat resends the message, and the first message starts the run. A lost
    run is also sent again, because its node was only silent.
    """
    mine = (Run.worker == worker, Run.worker_pid == pid, Run.started_at <= before)
    sent = {"status": Status.SENT, "overdue_at": before}
    sent |= {"finished_at": None, "retry_at": None, "error": None}
    return change(session, run_id, UNDO_START.sources, *mine, **sent) == 1


def owned_attempt(session: Session, *, run_id: str, worker: str) -> Row[int, int | None] | None:
    """Return attempt and worker_pid of a run whose last attempt ``worker`` started, or None."""
    statement = select(Run.attempt, Run.worker_pid).where(
        Run.id == run_id, Run.worker == worker, Run.status.in_(OWNED)
    )
    return session.execute(statement).one_or_none()
