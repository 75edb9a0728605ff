"""Queries on the health of an installation.

Each query reads the start of an index up to a limit, so a million rows cost no more than a
thousand. The quarantined schedules have an index without an order. The number of nodes is the
number of processes within nodes.NODE_RETENTION.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Row, Select, func, literal_column, not_, select
from sqlalchemy.orm import Session

from celery_dynbeat import store
from celery_dynbeat.common.states import UNFINISHED, Status
from celery_dynbeat.db.dialects import Capabilities, capabilities_of
from celery_dynbeat.db.models import Node, NodeKind, Run, Schedule
from celery_dynbeat.db.statements import force_index, in_index_order
from celery_dynbeat.store import holds, places
from celery_dynbeat.store.runs import UNFINISHED_INDEX, UNFINISHED_ORDER
from celery_dynbeat.store.schedules import MANAGED_BY_CONFIG, REFUSED_PREFIX, due, stopped_schedules
from celery_dynbeat.store.schedules.due import DUE_INDEX
from celery_dynbeat.store.schedules.stopped_schedules import FailingSchedule, HoldInForce
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
#: A run that waits longer for a place is reported.
LONG_WAIT = timedelta(minutes=1)
#: Characters of an error or a reason.
MAX_TEXT = 200


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows; with ``more`` it is a lower bound."""

    count: int
    more: bool = False

    def __str__(self) -> str:
        return f"{self.count}+" if self.more else str(self.count)


class LostRun(NamedTuple):
    """A run that was lost, and the worker that executed it."""

    id: str
    owner: str
    name: str
    worker: str | None
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The health of the tables at one instant. An instant is None if there are no such rows.

    ``runs`` counts the unfinished runs by status. ``quarantined_first`` contains owner, name and
    error of at most MAX_NAMED schedules. ``unsupported_trigger`` contains owner, name and kind of
    trigger of at most MAX_NAMED schedules.
    """

    nodes: Sequence[Node]
    due: Count
    oldest_due_at: datetime | None
    quarantined: Count
    quarantined_first: Sequence[tuple[str, str, str]]
    unsupported_trigger: Sequence[tuple[str, str, str]]
    overdue: Count
    overdue_since: datetime | None
    runs: Mapping[str, Count]
    #: The application that the tables belong to.
    application: str | None
    #: The release of the tz database that the schedules were planned with, if known.
    tz_release: str | None
    refused: Count
    #: Name and reason of the first MAX_NAMED schedules whose beat_schedule entry is refused.
    refused_first: Sequence[tuple[str, str]]
    #: Schedules that fire again, and whose last run failed or was lost.
    failing: Count
    failing_first: Sequence[FailingSchedule]
    #: The runs that were lost within LOST_FOR, the newest first.
    lost_first: Sequence[LostRun]
    #: The holds in force. The hold of everything comes first.
    holds: Count
    holds_first: Sequence[HoldInForce]
    #: The keys whose runs wait for a place for longer than LONG_WAIT, at most MAX_NAMED.
    long_waits: Sequence[places.LongWait]


@in_index_order
def read(session: Session, *, now: datetime, nodes_since: datetime) -> Tables:
    """Return the health of the tables at ``now``, with the nodes seen since ``nodes_since``."""
    quarantined = session.execute(quarantined_statement()).all()
    unsupported = due.find_unsupported(session, now=now, limit=MAX_NAMED)
    due_at = session.scalars(due_times_statement(now=now)).all()
    overdue = session.scalars(overdue_statement(now=now)).all()
    refused = session.execute(refused_statement()).all()
    bounds = {"limit": MAX_COUNTED + 1, "named": MAX_NAMED}
    failing, failing_first = stopped_schedules.read_failing(session, length=MAX_TEXT, **bounds)
    held, holds_first = stopped_schedules.read_holds(session, now=now, **bounds)
    return Tables(
        nodes=[
            node
            for kind in NodeKind
            for node in session.scalars(nodes_statement(kind, since=nodes_since))
        ],
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
        application=store.application_name(session.connection()),
        tz_release=store.planned_tz_release(session.connection()),
        refused=_counted(refused),
        refused_first=[(row.name, row.reason) for row in refused[:MAX_NAMED]],
        failing=_count(failing),
        failing_first=failing_first,
        lost_first=[
            LostRun(*row)
            for row in session.execute(
                lost_statement(capabilities_of(session.get_bind(Run).dialect), now=now)
            )
        ],
        holds=_count(held),
        holds_first=holds_first,
        long_waits=places.long_waits(session, before=now - LONG_WAIT, named=MAX_NAMED),
    )


def _counted(rows: Sequence[Any]) -> Count:
    return _count(len(rows))


def _count(number: int) -> Count:
    return Count(min(number, MAX_COUNTED), number > MAX_COUNTED)


@in_index_order
def count_unfinished(session: Session) -> Mapping[str, Count]:
    """Return the number of unfinished runs by status. At most MAX_RUNS_READ are counted."""
    capabilities = capabilities_of(session.get_bind(Run).dialect)
    return _by_status(session.execute(runs_statement(capabilities)).all())


def _by_status(rows: Sequence[Row[Any]]) -> dict[str, Count]:
    numbers = {row.status: row.number for row in rows}
    more = sum(numbers.values()) > MAX_RUNS_READ
    return {str(status): Count(numbers.get(status, 0), more) for status in UNFINISHED}


def due_times_statement(*, now: datetime) -> Select[Any]:
    """Return the SELECT of the schedules that are due, oldest first; none while all are held."""
    return (
        force_index(select(Schedule.next_run_at), Schedule, DUE_INDEX)
        .where(
            Schedule.next_run_at.is_not(None),
            Schedule.next_run_at <= now,
            Schedule.trigger_kind.in_(KINDS),
            not_(holds.everything_is_held(now)),
        )
        .order_by(Schedule.next_run_at, Schedule.id)
        .limit(MAX_COUNTED + 1)
    )


def overdue_statement(*, now: datetime) -> Select[Any]:
    """Return the SELECT of the runs that are overdue, oldest first."""
    return (
        select(Run.overdue_at)
        .where(Run.overdue_at.is_not(None), Run.overdue_at <= now)
        .order_by(Run.overdue_at)
        .limit(MAX_COUNTED + 1)
    )


def runs_statement(capabilities: Capabilities) -> Select[Any]:
    """Return the SELECT that counts unfinished runs by status."""
    # With the first column of the index in ORDER BY, MariaDB sorts all unfinished runs. PostgreSQL
    # needs it to read the index in its order.
    order = UNFINISHED_ORDER if capabilities.has_partial_indexes else UNFINISHED_ORDER[1:]
    unfinished = (
        force_index(select(Run.status), Run, UNFINISHED_INDEX)
        .where(Run.finished_at.is_(None))
        .order_by(*order)
        .limit(MAX_RUNS_READ + 1)
        .subquery()
    )
    status = unfinished.c.status
    return select(status, func.count().label("number")).group_by(status)


def lost_statement(capabilities: Capabilities, *, now: datetime) -> Select[Any]:
    """Return the SELECT of the first MAX_NAMED runs that were lost within LOST_FOR, newest first.

    Only the newest MAX_LOST_READ runs are read; on PostgreSQL the newest failed and lost ones.
    """
    newest = select(Run.id, Run.owner, Run.name, Run.worker, Run.finished_at, Run.status)
    if capabilities.has_partial_indexes:
        newest = newest.where(
            Run.status.in_([literal_column("'failed'"), literal_column("'lost'")])
        )
    read = newest.order_by(Run.id.desc()).limit(MAX_LOST_READ).subquery()
    return (
        select(read.c.id, read.c.owner, read.c.name, read.c.worker, read.c.finished_at)
        .where(read.c.status == Status.LOST, read.c.finished_at >= now - LOST_FOR)
        .order_by(read.c.id.desc())
        .limit(MAX_NAMED)
    )


def quarantined_statement() -> Select[Any]:
    """Return the SELECT of the quarantined schedules, in any order."""
    # A paused schedule stays quarantined. A quarantine implies the first three conditions: they let
    # MySQL use the index of the unplanned schedules.
    return (
        select(
            Schedule.id,
            Schedule.owner,
            Schedule.name,
            func.substr(Schedule.error, 1, MAX_TEXT).label("error"),
        )
        .where(
            Schedule.enabled.in_([True, False]),
            Schedule.finished_at.is_(None),
            Schedule.next_run_at.is_(None),
            Schedule.error.is_not(None),
        )
        .limit(MAX_COUNTED + 1)
    )


def refused_statement() -> Select[Any]:
    """Return the SELECT of the schedules whose beat_schedule entry is refused, by name."""
    return (
        select(
            Schedule.name,
            func.substr(Schedule.paused_reason, len(REFUSED_PREFIX) + 1, MAX_TEXT).label("reason"),
        )
        .where(
            Schedule.owner == "",
            Schedule.managed_by == MANAGED_BY_CONFIG,
            not_(Schedule.enabled),
            Schedule.paused_reason.startswith(REFUSED_PREFIX, autoescape=True),
        )
        .order_by(Schedule.name)
        .limit(MAX_COUNTED + 1)
    )


def nodes_statement(kind: NodeKind, *, since: datetime) -> Select[Any]:
    """Return the SELECT of the nodes of a kind, the most recently seen first."""
    statement = select(Node).where(Node.kind == kind, Node.seen_at >= since)
    return statement.order_by(Node.seen_at.desc(), Node.name).limit(MAX_NODES)
