"""Questions to the history of runs, one function each. Every transition is a conditional UPDATE.

``common.run_states`` lists the transitions. Those of a worker are in ``store.attempts``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    Update,
    and_,
    bindparam,
    case,
    func,
    select,
    update,
)
from sqlalchemy.orm import Session

from celery_dynbeat.common.run_states import CONFIRM, EXPIRE, GIVE_UP, REVOKE, Status
from celery_dynbeat.db import batches
from celery_dynbeat.db.dialects import Capabilities, capabilities_of
from celery_dynbeat.db.index_order import force_index, in_index_order
from celery_dynbeat.db.models import Origin, Run, Schedule
from celery_dynbeat.db.tables import RUNS
from celery_dynbeat.db.types import UtcDateTime
from celery_dynbeat.store.rows import LockedRows, read

#: The longest list of values in one condition; drivers allow some tens of thousands.
MAX_IN_LIST = 1_000
#: In the order of their index, of whose use the planner does not think by itself: it takes history
#: for something that soon leads to a run of any kind.
UNFINISHED_ORDER = (Run.finished_at, Run.schedule_id)
#: The same from its end: the newest first.
NEWEST_UNFINISHED = (Run.finished_at.desc(), Run.schedule_id.desc(), Run.id.desc())
UNFINISHED_INDEX = "ix_dynbeat_run_newest_unfinished"
FIRE_TIME_INDEX = "uq_dynbeat_run_schedule_id_scheduled_for"


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs a history shows; None means any. ``since`` counts from ``scheduled_for``.

    ``schedule_id`` is that of the schedule which bears ``name``, and belongs to ``owner``, now.
    """

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
    added = batches.insert_new(session.connection(), RUNS, rows)
    ids = {row["id"] for row in rows}
    return ids if added == len(ids) else _present(session, ids)


def has_run(session: Session, *, schedule_id: int, scheduled_for: datetime) -> bool:
    """Return whether the schedule has a run, or a skipped one, for that fire time."""
    found = select(Run.id).where(Run.schedule_id == schedule_id, Run.scheduled_for == scheduled_for)
    return session.scalar(found.limit(1)) is not None


def _present(session: Session, ids: set[str]) -> set[str]:
    wanted = sorted(ids)
    found: set[str] = set()
    for start in range(0, len(wanted), MAX_IN_LIST):
        statement = select(Run.id).where(Run.id.in_(wanted[start : start + MAX_IN_LIST]))
        found.update(session.scalars(statement))
    return found


def mark_sent(
    session: Session,
    ids: Sequence[str],
    *,
    attempt: int,
    now: datetime,
    overdue_at: datetime,
) -> int:
    """Say that the broker has these runs' messages, which follow ``attempt``: they are sent.

    A worker may have been faster; then the run keeps its state, also when it waits for yet another
    attempt by now. ``sent_at`` keeps the first time, so that the lag stays what it was.
    """
    if not ids:
        return 0
    capabilities = capabilities_of(session.get_bind().dialect)
    given = batches.among_parameter(capabilities, ids)
    values = {**given, "after": attempt, "now": now, "again_at": overdue_at}
    values |= {"first": min(ids), "last": max(ids)}
    return execute_dml(session, _mark_sent(capabilities), values)


@cache
def _mark_sent(capabilities: Capabilities) -> Update:
    run = RUNS.c
    unstarted = and_(run.status.in_(CONFIRM.sources), run.attempt == bindparam("after"))
    again_at = bindparam("again_at", type_=UtcDateTime)
    # The ids of a batch lie side by side. PostgreSQL keeps the plan that it made when the history
    # was empty, and without bounds that is to read all of it.
    bounds = run.id.between(bindparam("first"), bindparam("last"))
    return (
        update(RUNS)
        .where(bounds, batches.is_among(capabilities, run.id))
        .values(
            overdue_at=case((unstarted, again_at), else_=run.overdue_at),
            status=case((unstarted, Status.SENT), else_=run.status),
            sent_at=func.coalesce(run.sent_at, bindparam("now", type_=UtcDateTime)),
        )
    )


def mark_unpublishable(session: Session, *, run_id: str, now: datetime, error: str) -> int:
    """Move a run that has not started to failed: the broker will never take it."""
    statement = (
        update(Run)
        .where(Run.id == run_id, Run.status.in_(GIVE_UP.sources))
        .values(status=Status.FAILED, finished_at=now, error=error, overdue_at=None)
    )
    return execute_dml(session, statement)


def earliest_overdue_at(*, since: Any = None, until: Any) -> Any:
    """Return the subquery for the earliest ``overdue_at`` up to ``until``, or from ``since`` on.

    Behind lies what is sent and not started: most of it leaves the index without ever being due.
    """
    overdue_at = RUNS.c.overdue_at
    # Not min(): where few are expected, PostgreSQL reads all of them for it.
    earliest = select(overdue_at).where(overdue_at.is_not(None), overdue_at <= until)
    if since is not None:
        earliest = earliest.where(overdue_at >= since)
    return earliest.order_by(overdue_at).limit(1).scalar_subquery()


def first_overdue_id(*, now: datetime) -> Any:
    """Return the condition that a run is overdue, as the database itself compares instants."""
    overdue = select(Run.id).where(Run.overdue_at.is_not(None), Run.overdue_at <= now)
    return overdue.order_by(Run.overdue_at).limit(1).scalar_subquery()


@in_index_order
def lock_overdue(
    session: Session, *, now: datetime, limit: int, since: datetime | None = None
) -> LockedRows:
    """Return up to ``limit`` overdue runs, oldest first, with what it takes to publish them.

    Only what is overdue ``since`` is looked at. The rows are locked, also those that cannot be
    read; rows that another beat has locked are skipped.
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
            Run.attempt,
            Run.retries,
            Schedule.id.label("schedule_id"),
            Schedule.version,
            Schedule.task,
            Schedule.args,
            Schedule.kwargs,
            Schedule.options,
            Schedule.expires_after,
            Schedule.overlap,
            Schedule.max_run_time,
            Schedule.enabled,
        )
        .join(Schedule, Schedule.id == Run.schedule_id)
        .where(Run.overdue_at.is_not(None), Run.overdue_at <= now)
        .order_by(Run.overdue_at)
        .limit(limit)
        .with_for_update(skip_locked=True, of=Run)
    )
    if since is not None:
        statement = statement.where(Run.overdue_at >= since)
    return read(session, statement, key=Run.id)


@in_index_order
def schedule_ids_of(session: Session, ids: Sequence[str]) -> Sequence[int]:
    """Return the ids of the schedules of the runs, those that still are there."""
    statement = select(Run.schedule_id).where(Run.id.in_(ids), Run.schedule_id.is_not(None))
    return [found for found in session.scalars(statement.distinct()) if found is not None]


def lease(session: Session, ids: Sequence[str], *, overdue_at: datetime) -> int:
    """Take overdue runs in hand: nobody else publishes them before ``overdue_at``."""
    if not ids:
        return 0
    unstarted = Run.status.in_(CONFIRM.sources)
    statement = update(Run).where(Run.id.in_(ids), unstarted).values(overdue_at=overdue_at)
    return execute_dml(session, statement)


def mark_expired(session: Session, ids: Sequence[str], *, now: datetime) -> int:
    """Move runs that have never started to expired: no worker started them in time."""
    if not ids:
        return 0
    statement = (
        update(Run)
        .where(Run.id.in_(ids), Run.status.in_(EXPIRE.sources), Run.attempt == 0)
        .values(
            status=Status.EXPIRED,
            finished_at=now,
            overdue_at=None,
            error="not started within expires_after",
        )
    )
    return execute_dml(session, statement)


def revoke(session: Session, ids: Sequence[str], *, now: datetime, reason: str) -> int:
    """Move runs that have not started to revoked."""
    if not ids:
        return 0
    statement = (
        update(Run)
        .where(Run.id.in_(ids), Run.status.in_(REVOKE.sources))
        .values(
            status=Status.REVOKED, finished_at=now, overdue_at=None, retry_at=None, error=reason
        )
    )
    return execute_dml(session, statement)


@in_index_order
def revoke_orphans(
    session: Session, *, now: datetime, limit: int, since: datetime | None = None
) -> int:
    """Revoke runs, overdue ``since``, whose schedule was deleted behind the API's back.

    The first ``limit`` that are overdue are looked at; those that stand before them are published,
    or put off, by the same sweep.
    """
    front = select(Run.id, Run.schedule_id).where(
        Run.overdue_at.is_not(None), Run.overdue_at <= now
    )
    if since is not None:
        front = front.where(Run.overdue_at >= since)
    found = session.execute(front.order_by(Run.overdue_at).limit(limit))
    orphans = [run_id for run_id, schedule_id in found if schedule_id is None]
    return revoke(session, orphans, now=now, reason="the schedule was deleted")


def is_unfinished_of(session: Session, schedule_ids: Sequence[int]) -> ColumnElement[bool]:
    """Return the condition that a run of one of the schedules, which are locked, has not ended.

    The statement also asks for the status, and forces UNFINISHED_INDEX where that can be said.
    """
    if not capabilities_of(session.get_bind(Run).dialect).has_lateral:
        return and_(Run.finished_at.is_(None), Run.schedule_id.in_(schedule_ids))
    # Two statements: of a subquery in the UPDATE the planner may make the inner loop. And no other
    # condition beside the ids, which would then be parsed again for each row that it leads to.
    ids = session.scalars(newest_unfinished((Run.id,), schedule_ids)).all()
    return Run.id == batches.any_element_of(Run.id, ids)


def newest_unfinished(
    columns: Sequence[Any], schedule_ids: Sequence[int], *, limit: int | None = None
) -> Select[Any]:
    """Return ``columns`` of up to ``limit`` unfinished runs of each schedule, with LATERAL.

    Each in the order of UNFINISHED_INDEX. The unique key begins with the schedule, too, and leads
    to its whole history.
    """

    def newest(schedule_id: Any) -> Select[Any]:
        unfinished = (Run.finished_at.is_(None), Run.schedule_id == schedule_id)
        return select(*columns).where(*unfinished).order_by(*NEWEST_UNFINISHED).limit(limit)

    return batches.lateral_for_each(Schedule.id, schedule_ids, newest)


@in_index_order
def revoke_unstarted(
    session: Session,
    *,
    schedule_ids: Sequence[int],
    now: datetime,
    reason: str,
    keep_manual: bool = False,
    except_ids: Sequence[str] = (),
) -> int:
    """Move the pending, sent and retrying runs of the schedules to revoked: a cancel wins.

    Runs in ``except_ids`` are left alone.
    """
    statement = (
        update(Run)
        .where(is_unfinished_of(session, schedule_ids), Run.status.in_(REVOKE.sources))
        .values(
            status=Status.REVOKED, finished_at=now, overdue_at=None, retry_at=None, error=reason
        )
    )
    if keep_manual:
        statement = statement.where(Run.origin != Origin.MANUAL)
    if except_ids:
        statement = statement.where(Run.id.not_in(except_ids))
    return execute_dml(session, force_index(statement, Run.__table__, UNFINISHED_INDEX))


@in_index_order
def revoke_owner(session: Session, *, owner: str, now: datetime, reason: str) -> int:
    """Move the runs that have not started, of all schedules of ``owner``, to revoked."""
    theirs = session.scalars(select(Schedule.id).where(Schedule.owner == owner)).all()
    # By their ids, which the index of unfinished runs takes: MariaDB walks the whole history for a
    # subquery.
    return sum(
        revoke_unstarted(
            session, schedule_ids=theirs[start : start + MAX_IN_LIST], now=now, reason=reason
        )
        for start in range(0, len(theirs), MAX_IN_LIST)
    )


def get(session: Session, *, run_id: str) -> Run | None:
    """Return the run, or None."""
    return session.get(Run, run_id, populate_existing=True)


@in_index_order
def history(session: Session, *, matching: RunFilter, limit: int) -> Sequence[Run]:
    """Return up to ``limit`` runs, the newest fire time first."""
    statement = select(Run)
    order: list[Any] = [Run.scheduled_for.desc()]
    if matching.schedule_id is not None:
        # Not the owner and the name beside it, which it implies: another index would lead to them.
        statement = force_index(statement, Run, FIRE_TIME_INDEX)
        statement = statement.where(Run.schedule_id == matching.schedule_id)
    else:
        order.append(Run.id.desc())
        statement = statement.where(Run.owner == matching.owner)
        if matching.name is not None:
            statement = statement.where(Run.name == matching.name)
    if matching.status is not None:
        statement = statement.where(Run.status == matching.status)
    if matching.origin is not None:
        statement = statement.where(Run.origin == matching.origin)
    if matching.since is not None:
        statement = statement.where(Run.scheduled_for >= matching.since)
    return session.scalars(statement.order_by(*order).limit(limit)).all()


@in_index_order
def detach_from_schedule(session: Session, condition: ColumnElement[bool]) -> None:
    """Let the runs belong to no schedule: theirs is about to be deleted."""
    # In parts: a long history takes longer than a connection waits for one answer.
    linked = select(Run.id).where(condition, Run.schedule_id.is_not(None)).limit(MAX_IN_LIST)
    while ids := session.scalars(linked).all():
        execute_dml(session, update(Run).where(Run.id.in_(ids)).values(schedule_id=None))


def execute_dml(session: Session, statement: Any, values: Mapping[str, Any] | None = None) -> int:
    """Execute an UPDATE and return how many rows it changed."""
    options = {"synchronize_session": False}
    result = session.execute(statement, values, execution_options=options)
    return int(result.rowcount)  # type: ignore[attr-defined]
