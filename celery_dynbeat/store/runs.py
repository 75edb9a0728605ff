"""Questions to the history of runs, one function each. Every transition is a conditional UPDATE.

The state machine is drawn in docs/explanation/run-states.md; each arrow there is one function here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, case, func, literal, select, update
from sqlalchemy.orm import Session

from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import UNSTARTED, Origin, Run, Schedule, Status
from celery_dynbeat.db.types import UtcDateTime

#: The longest list of values in one condition; drivers allow some tens of thousands.
IN_LIST = 1_000
_FINAL = (Status.SUCCEEDED, Status.FAILED, Status.REVOKED, Status.EXPIRED, Status.SKIPPED)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which runs a history shows; None means any. ``since`` counts from ``scheduled_for``."""

    owner: str
    name: str | None = None
    schedule_id: int | None = None
    status: str | None = None
    origin: str | None = None
    since: datetime | None = None


def add(session: Session, rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """Insert runs and return the ids of those that were new.

    A fire time that already has a run keeps it: that is the unique key doing its work, not an
    error.
    """
    if not rows:
        return set()
    statement = capabilities_of(session.get_bind().dialect).insert_new(Run.__table__)  # type: ignore[arg-type]
    result = session.connection().execute(statement, list(rows))
    ids = {row["id"] for row in rows}
    return ids if result.rowcount == len(ids) else _present(session, ids)


def _present(session: Session, ids: set[str]) -> set[str]:
    wanted = sorted(ids)
    found: set[str] = set()
    for start in range(0, len(wanted), IN_LIST):
        statement = select(Run.id).where(Run.id.in_(wanted[start : start + IN_LIST]))
        found.update(session.scalars(statement))
    return found


def mark_sent(
    session: Session,
    ids: Sequence[str],
    *,
    now: datetime,
    overdue_at: datetime,
) -> int:
    """Say that the broker has these runs: what has not started is ``sent`` from now on.

    A worker may have been faster; then the run keeps its state. ``sent_at`` keeps the first time,
    so that the lag stays what it was.
    """
    if not ids:
        return 0
    unstarted = Run.status.in_(UNSTARTED)
    statement = (
        update(Run)
        .where(Run.id.in_(ids))
        .values(
            overdue_at=case((unstarted, literal(overdue_at, UtcDateTime)), else_=Run.overdue_at),
            status=case((unstarted, Status.SENT), else_=Run.status),
            sent_at=func.coalesce(Run.sent_at, literal(now, UtcDateTime)),
        )
    )
    return affected(session, statement)


def mark_unpublishable(session: Session, *, run_id: str, now: datetime, error: str) -> int:
    """Move a run that has not started to failed: the broker will never take it."""
    statement = (
        update(Run)
        .where(Run.id == run_id, Run.status.in_(UNSTARTED))
        .values(status=Status.FAILED, finished_at=now, error=error, overdue_at=None)
    )
    return affected(session, statement)


def earliest_overdue() -> Any:
    """Return the subquery for the earliest ``overdue_at`` of all."""
    return select(func.min(Run.overdue_at)).scalar_subquery()


def lock_overdue(session: Session, *, now: datetime, limit: int) -> Sequence[Row[Any]]:
    """Return up to ``limit`` overdue runs, oldest first, with what it takes to publish them.

    The rows are locked; rows that another beat has locked are skipped.
    """
    statement: Any = (
        select(
            Run.id,
            Run.owner,
            Run.name,
            Run.scheduled_for,
            Run.created_at,
            Run.origin,
            Run.sent_at,
            Schedule.id.label("schedule_id"),
            Schedule.version,
            Schedule.task,
            Schedule.args,
            Schedule.kwargs,
            Schedule.options,
            Schedule.expires_after,
            Schedule.overlap,
            Schedule.max_run_time,
        )
        .join(Schedule, Schedule.id == Run.schedule_id)
        .where(Run.overdue_at.is_not(None), Run.overdue_at <= now)
        .order_by(Run.overdue_at)
        .limit(limit)
        .with_for_update(skip_locked=True, of=Run)
    )
    return session.execute(statement).all()


def lease(session: Session, ids: Sequence[str], *, overdue_at: datetime) -> int:
    """Take overdue runs in hand: nobody else publishes them before ``overdue_at``."""
    if not ids:
        return 0
    statement = (
        update(Run).where(Run.id.in_(ids), Run.status.in_(UNSTARTED)).values(overdue_at=overdue_at)
    )
    return affected(session, statement)


def mark_expired(session: Session, ids: Sequence[str], *, now: datetime) -> int:
    """Move runs that have not started to expired: no worker started them in time."""
    if not ids:
        return 0
    statement = (
        update(Run)
        .where(Run.id.in_(ids), Run.status.in_(UNSTARTED))
        .values(
            status=Status.EXPIRED,
            finished_at=now,
            overdue_at=None,
            error="not started within expires_after",
        )
    )
    return affected(session, statement)


def revoke_orphans(session: Session, *, now: datetime) -> int:
    """Revoke overdue runs whose schedule was deleted behind the API's back."""
    statement = (
        update(Run)
        .where(Run.overdue_at.is_not(None), Run.overdue_at <= now, Run.schedule_id.is_(None))
        .values(
            status=Status.REVOKED,
            finished_at=now,
            overdue_at=None,
            error="the schedule was deleted",
        )
    )
    return affected(session, statement)


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
    statement = (
        update(Run)
        .where(Run.id == run_id, condition)
        .values(
            status=Status.RUNNING,
            attempt=Run.attempt + 1,
            retries=begun.retries,
            started_at=begun.now,
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


def revoke_unstarted(
    session: Session,
    *,
    schedule_ids: Sequence[int],
    now: datetime,
    reason: str,
    keep_manual: bool = False,
) -> int:
    """Move the pending, sent and retrying runs of the schedules to revoked: a cancel wins."""
    statement = (
        update(Run)
        .where(
            Run.schedule_id.in_(schedule_ids),
            Run.status.in_((*UNSTARTED, Status.RETRYING)),
        )
        .values(status=Status.REVOKED, finished_at=now, overdue_at=None, error=reason)
    )
    if keep_manual:
        statement = statement.where(Run.origin != Origin.MANUAL)
    return affected(session, statement)


def revoke_owner(session: Session, *, owner: str, now: datetime, reason: str) -> int:
    """Move the runs that have not started, of all schedules of ``owner``, to revoked."""
    theirs = select(Schedule.id).where(Schedule.owner == owner)
    statement = (
        update(Run)
        .where(Run.schedule_id.in_(theirs), Run.status.in_((*UNSTARTED, Status.RETRYING)))
        .values(status=Status.REVOKED, finished_at=now, overdue_at=None, error=reason)
    )
    return affected(session, statement)


def get(session: Session, *, run_id: str) -> Run | None:
    """Return the run, or None."""
    return session.get(Run, run_id, populate_existing=True)


def history(session: Session, *, matching: Filter, limit: int) -> Sequence[Run]:
    """Return up to ``limit`` runs, the newest fire time first."""
    statement = select(Run).where(Run.owner == matching.owner)
    if matching.name is not None:
        statement = statement.where(Run.name == matching.name)
    if matching.schedule_id is not None:
        statement = statement.where(Run.schedule_id == matching.schedule_id)
    if matching.status is not None:
        statement = statement.where(Run.status == matching.status)
    if matching.origin is not None:
        statement = statement.where(Run.origin == matching.origin)
    if matching.since is not None:
        statement = statement.where(Run.scheduled_for >= matching.since)
    ordered = statement.order_by(Run.scheduled_for.desc(), Run.id.desc()).limit(limit)
    return session.scalars(ordered).all()


def affected(session: Session, statement: Any) -> int:
    """Execute an UPDATE and return how many rows it changed."""
    result = session.execute(statement, execution_options={"synchronize_session": False})
    return int(result.rowcount)  # type: ignore[attr-defined]
