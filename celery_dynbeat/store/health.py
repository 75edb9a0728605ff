"""Queries on the health of an installation: what it has not sent or started.

Each query reads the start of an index up to a limit, so a million rows cost no more than a
thousand. The quarantined schedules have an index without an order. The number of nodes is the
number of processes within nodes.NODE_RETENTION.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Row, and_, case, func, literal_column, not_, or_, select
from sqlalchemy.orm import Session, undefer

from celery_dynbeat import store
from celery_dynbeat.common.filters import ScheduleFilter
from celery_dynbeat.common.infos import ZERO, BoundedCount
from celery_dynbeat.common.states import UNFINISHED, Status
from celery_dynbeat.db.models import HOLDS, Hold, Node, NodeKind, Run, Schedule
from celery_dynbeat.db.statements import capabilities_in
from celery_dynbeat.store import holds, places
from celery_dynbeat.store.runs import (
    WAITS_IN_BATCH,
    is_not_interrupted,
    order_of_unfinished,
)
from celery_dynbeat.store.schedules import MANAGED_BY_CONFIG, REFUSED_PREFIX, due
from celery_dynbeat.store.schedules.schedule_pages import in_state
from celery_dynbeat.triggers import KINDS

#: Rows that are counted. A larger number is reported as this number "or more".
MAX_COUNTED = 1_000
#: Unfinished runs that are counted by status.
MAX_RUNS_READ = 10_000
MAX_NODES = 200
MAX_NAMED = 5
#: For how long a lost run is named, and the runs in which they are searched.
LOST_FOR = timedelta(hours=1)
MAX_LOST_READ = 900
#: Rows of failing schedules that are read. Finished schedules are not counted.
MAX_FAILING_READ = 10_000
#: Rows of the history of a schedule in which its last error is searched.
MAX_HISTORY_READ = 100
#: Rows that are read for late schedules or runs.
MAX_LATE_READ = 10_000
#: Waiting runs, and schedules that are due next, in the sample of the work.
MAX_SAMPLE = 1_000
#: A run that waits longer for a place is reported.
LONG_WAIT = timedelta(minutes=1)
#: Characters of an error or a reason.
MAX_TEXT = 200


class LostRun(NamedTuple):
    """A run that was lost, and the worker that executed it."""

    id: str
    owner: str
    name: str
    worker: str | None
    at: datetime


class FailingSchedule(NamedTuple):
    """A schedule that fires again, and whose last runs failed or were lost.

    ``since`` is when the first of these runs ended. ``error`` is the error of the last one, or
    None.
    """

    owner: str
    name: str
    since: datetime
    error: str | None


class StoppingHold(NamedTuple):
    """A hold. ``owner=None`` means all schedules, and ``until=None`` means until its release."""

    owner: str | None
    actor: str
    reason: str
    since: datetime
    until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The health of the tables at one instant. An instant is None if there are no such rows.

    ``runs`` counts the unfinished runs by status. ``quarantined_first`` contains owner, name and
    error of at most MAX_NAMED schedules. ``unsupported_trigger`` contains owner, name and kind of
    trigger of at most MAX_NAMED schedules.
    """

    nodes: Sequence[Node]
    due: BoundedCount
    oldest_due_at: datetime | None
    quarantined: BoundedCount
    quarantined_first: Sequence[tuple[str, str, str]]
    unsupported_trigger: Sequence[tuple[str, str, str]]
    overdue: BoundedCount
    overdue_since: datetime | None
    runs: Mapping[str, BoundedCount]
    #: The application that the tables belong to.
    application: str | None
    #: The release of the tz database that the schedules were planned with, if known.
    tz_release: str | None
    refused: BoundedCount
    #: Name and reason of the first MAX_NAMED schedules whose beat_schedule entry is refused.
    refused_first: Sequence[tuple[str, str]]
    #: Schedules that fire again, and whose last run failed or was lost.
    failing: BoundedCount
    failing_first: Sequence[FailingSchedule]
    #: The runs that were lost within LOST_FOR, the newest first.
    lost_first: Sequence[LostRun]
    #: The holds in force. The hold of everything comes first.
    holds: BoundedCount
    holds_first: Sequence[StoppingHold]
    #: The keys whose runs wait for a place for longer than LONG_WAIT, at most MAX_NAMED.
    long_waits: Sequence[places.LongWait]


def read(session: Session, *, now: datetime, nodes_since: datetime) -> Tables:
    """Return the health of the tables at ``now``, with the nodes seen since ``nodes_since``."""
    quarantined = _quarantined(session)
    unsupported = due.find_unsupported(session, now=now, limit=MAX_NAMED)
    due_at = due_times(session, now=now)
    overdue = _overdue_times(session, now=now)
    refused = _refused(session)
    failing = _failing(session)
    held = _holds(session, now=now)
    return Tables(
        nodes=read_nodes(session, since=nodes_since),
        due=_counted(due_at),
        oldest_due_at=due_at[0] if due_at else None,
        quarantined=_counted(quarantined),
        quarantined_first=[
            (row.owner, row.name, row.error) for row in sorted(quarantined)[:MAX_NAMED]
        ],
        unsupported_trigger=[(row.owner, row.name, row.trigger_kind) for row in unsupported],
        overdue=_counted(overdue),
        overdue_since=overdue[0] if overdue else None,
        runs=count_unfinished(session),
        application=store.application_name(session),
        tz_release=store.planned_tz_release(session),
        refused=_counted(refused),
        refused_first=[(row.name, row.reason) for row in refused[:MAX_NAMED]],
        failing=_counted(failing),
        failing_first=[
            FailingSchedule(row.owner, row.name, row.failing_since, _last_error(session, row.id))
            for row in sorted(failing, key=lambda row: (row.owner, row.name))[:MAX_NAMED]
        ],
        lost_first=_lost(session, now=now),
        holds=_counted(held),
        holds_first=[StoppingHold(*row) for row in held[:MAX_NAMED]],
        long_waits=places.long_waits(session, before=now - LONG_WAIT, named=MAX_NAMED),
    )


def _counted(rows: Sequence[Any]) -> BoundedCount:
    return BoundedCount(count=len(rows)).cut(MAX_COUNTED)


def count_unfinished(session: Session) -> Mapping[str, BoundedCount]:
    """Return the number of unfinished runs by status. At most MAX_RUNS_READ are counted."""
    unfinished = (
        select(Run.status)
        .where(Run.finished_at.is_(None))
        .order_by(*order_of_unfinished(session))
        .limit(MAX_RUNS_READ + 1)
        .subquery()
    )
    status = unfinished.c.status
    rows = session.execute(select(status, func.count().label("number")).group_by(status))
    numbers = {row.status: row.number for row in rows}
    exact = sum(numbers.values()) <= MAX_RUNS_READ
    return {
        str(status): BoundedCount(count=numbers.get(status, 0), exact=exact)
        for status in UNFINISHED
    }


def due_times(session: Session, *, now: datetime) -> Sequence[datetime | None]:
    """Return when the due schedules are due, oldest first, at most MAX_COUNTED + 1.

    There are none while all schedules are held.
    """
    at = Schedule.next_run_at
    found = select(at).where(
        at.is_not(None),
        at <= now,
        Schedule.trigger_kind.in_(KINDS),
        not_(holds.everything_is_held(now)),
    )
    return session.scalars(found.order_by(at, Schedule.id).limit(MAX_COUNTED + 1)).all()


def _overdue_times(session: Session, *, now: datetime) -> Sequence[datetime | None]:
    overdue = select(Run.overdue_at).where(Run.overdue_at.is_not(None), Run.overdue_at <= now)
    return session.scalars(overdue.order_by(Run.overdue_at).limit(MAX_COUNTED + 1)).all()


def _lost(session: Session, *, now: datetime) -> Sequence[LostRun]:
    """Return the first MAX_NAMED runs that were lost within LOST_FOR, newest first.

    Only the newest MAX_LOST_READ runs are read; on PostgreSQL the newest failed and lost ones.
    """
    newest = select(Run.id, Run.owner, Run.name, Run.worker, Run.finished_at, Run.status)
    if capabilities_in(session).has_partial_indexes:
        newest = newest.where(
            Run.status.in_([literal_column("'failed'"), literal_column("'lost'")])
        )
    read = newest.order_by(Run.id.desc()).limit(MAX_LOST_READ).subquery()
    lost = (
        select(read.c.id, read.c.owner, read.c.name, read.c.worker, read.c.finished_at)
        .where(read.c.status == Status.LOST, read.c.finished_at >= now - LOST_FOR)
        .order_by(read.c.id.desc())
        .limit(MAX_NAMED)
    )
    return [LostRun(*row) for row in session.execute(lost)]


def _quarantined(session: Session) -> Sequence[Row[Any]]:
    # A paused schedule stays quarantined. A quarantine implies the first three conditions: they let
    # MySQL use the index of the unplanned schedules.
    conditions = (
        Schedule.enabled.in_([True, False]),
        Schedule.finished_at.is_(None),
        Schedule.next_run_at.is_(None),
        Schedule.error.is_not(None),
    )
    error = func.substr(Schedule.error, 1, MAX_TEXT).label("error")
    found = select(Schedule.id, Schedule.owner, Schedule.name, error).where(*conditions)
    return session.execute(found.limit(MAX_COUNTED + 1)).all()


def _refused(session: Session) -> Sequence[Row[Any]]:
    """Return the schedules whose beat_schedule entry is refused, by name."""
    reason = func.substr(Schedule.paused_reason, len(REFUSED_PREFIX) + 1, MAX_TEXT)
    refused = select(Schedule.name, reason.label("reason")).where(
        Schedule.owner == "",
        Schedule.managed_by == MANAGED_BY_CONFIG,
        not_(Schedule.enabled),
        Schedule.paused_reason.startswith(REFUSED_PREFIX, autoescape=True),
    )
    return session.execute(refused.order_by(Schedule.name).limit(MAX_COUNTED + 1)).all()


def _failing(session: Session) -> Sequence[Row[Any]]:
    """Return the failing schedules that fire again, in any order."""
    columns = (Schedule.id, Schedule.owner, Schedule.name, Schedule.failing_since)
    failing = (
        select(*columns, Schedule.next_run_at)
        .where(Schedule.failing_since.is_not(None))
        .limit(MAX_FAILING_READ)
        .subquery()
    )
    fires_again = select(failing).where(failing.c.next_run_at.is_not(None))
    return session.execute(fires_again.limit(MAX_COUNTED + 1)).all()


def _last_error(session: Session, schedule_id: int) -> str | None:
    """Return the first characters of the error of the last failed or lost run."""
    newest = (
        select(Run.status, Run.error, Run.fire_at)
        .where(Run.schedule_id == schedule_id)
        .order_by(Run.fire_at.desc())
        .limit(MAX_HISTORY_READ)
        .subquery()
    )
    failed = newest.c.status.in_((Status.FAILED, Status.LOST))
    errors = select(func.substr(newest.c.error, 1, MAX_TEXT)).where(
        failed, is_not_interrupted(newest.c.status, newest.c.error)
    )
    error: str | None = session.scalar(errors.order_by(newest.c.fire_at.desc()).limit(1))
    return error


def _holds(session: Session, *, now: datetime) -> Sequence[Any]:
    """Return the hold of everything, and then the holds of owners, the oldest first."""
    columns: Any = (Hold.owner, Hold.actor, Hold.reason, Hold.created_at, Hold.until_at)
    in_force = select(*columns).where(or_(Hold.until_at.is_(None), Hold.until_at > now))
    of_everything = in_force.where(HOLDS.c.everything)
    # Maintenance deletes holds that have ended, so few rows do not match.
    of_owners = in_force.where(Hold.owner.is_not(None))
    oldest = of_owners.order_by(Hold.id).limit(MAX_COUNTED + 1)
    return [*session.execute(of_everything), *session.execute(oldest)]


def read_nodes(
    session: Session,
    *,
    since: datetime,
    kinds: Iterable[NodeKind] = NodeKind,
    names: Sequence[Any] = (),
) -> Sequence[Node]:
    """Return the nodes seen since ``since``, kind by kind, the most recently seen first.

    ``names`` are the columns of queues and tasks to read as well.
    """
    options = [undefer(each) for each in names]
    found = (select(Node).where(Node.kind == kind, Node.seen_at >= since) for kind in kinds)
    newest = (
        each.options(*options).order_by(Node.seen_at.desc(), Node.name).limit(MAX_NODES)
        for each in found
    )
    return [node for statement in newest for node in session.scalars(statement)]


def sample_waiting(session: Session, *, with_arguments: bool) -> Sequence[Row[Any]]:
    """Return what unstarted runs are sent with, the first sent run first.

    The columns are task and options, and with ``with_arguments`` args and kwargs.
    """
    # A run that has not started is in the index of overdue runs.
    unstarted = (
        select(Run.schedule_id, Run.status, Run.overdue_at)
        .where(Run.overdue_at.is_not(None))
        .order_by(Run.overdue_at)
        .limit(2 * MAX_SAMPLE)
        .subquery()
    )
    sent = select(*_sent_columns(with_arguments)).join(
        unstarted, unstarted.c.schedule_id == Schedule.id
    )
    sent = sent.where(unstarted.c.status == Status.SENT)
    return session.execute(sent.limit(MAX_SAMPLE)).all()


def sample_due(session: Session, *, with_arguments: bool) -> Sequence[Row[Any]]:
    """Return the same columns and next_run_at of the schedules that are due next."""
    at = Schedule.next_run_at
    planned: Any = select(*_sent_columns(with_arguments), at).where(at.is_not(None))
    return session.execute(planned.order_by(at, Schedule.id).limit(MAX_SAMPLE)).all()


def _sent_columns(with_arguments: bool) -> tuple[Any, ...]:  # noqa: FBT001 - its only argument
    arguments = (Schedule.args, Schedule.kwargs) if with_arguments else ()
    return (Schedule.task, Schedule.options, *arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """A number of late rows, and the earliest of their instants."""

    count: BoundedCount = ZERO
    oldest_at: datetime | None = None


def overdue_schedules(session: Session, *, matching: ScheduleFilter) -> Late:
    """Return the overdue schedules that match. ``oldest_at`` is the earliest next_run_at."""
    if holds.is_everything_held(session, now=matching.now):
        return Late()
    is_late = case((and_(*in_state(matching)), 1), else_=0).label("is_late")
    read: Any = select(Schedule.next_run_at, is_late)
    first = (
        read.where(
            Schedule.next_run_at.is_not(None), Schedule.next_run_at < matching.overdue_before
        )
        .order_by(Schedule.next_run_at, Schedule.id)
        .limit(MAX_LATE_READ + 1)
        .subquery()
    )
    at = case((first.c.is_late == 1, first.c.next_run_at))
    oldest = func.min(at, type_=Schedule.next_run_at.type)
    found = select(func.count(), func.sum(first.c.is_late), oldest).select_from(first)
    number, late, oldest_at = session.execute(found).one()
    count = BoundedCount(count=int(late or 0), exact=number <= MAX_LATE_READ)
    return Late(count=count.cut(MAX_LATE_READ), oldest_at=oldest_at)


def overdue_runs(session: Session, *, now: datetime) -> Late:
    """Return the overdue runs. ``oldest_at`` is the earliest overdue_at."""
    return _unstarted(session, Run.overdue_at, Run.overdue_at <= now)


def unstarted_runs(session: Session) -> Late:
    """Return the runs that no worker has started, without those that wait in a batch.

    ``oldest_at`` is the earliest instant since which one of the MAX_LATE_READ runs that are overdue
    next could be sent.
    """
    # A run that has not started is in the index of overdue runs. So is one that waits for a retry.
    since = func.coalesce(Run.ready_at, Run.created_at)
    return _unstarted(session, since, Run.status != Status.RETRYING, not_(WAITS_IN_BATCH))


def _unstarted(session: Session, instant: Any, *conditions: Any) -> Late:
    read: Any = select(instant.label("at"))
    first = (
        read.where(Run.overdue_at.is_not(None), *conditions)
        .order_by(Run.overdue_at)
        .limit(MAX_LATE_READ + 1)
        .subquery()
    )
    count, oldest = session.execute(
        select(func.count(), func.min(first.c.at, type_=Run.created_at.type))
    ).one()
    return Late(count=BoundedCount(count=count).cut(MAX_LATE_READ), oldest_at=oldest)
