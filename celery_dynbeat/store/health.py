"""What the tables tell of an installation's health.

Each query reads the start of an index and stops at a limit, so a million rows cost no more than a
thousand. Two queries differ: ``quarantined`` has no index on PostgreSQL and SQLite, and the nodes
are as many as the processes within nodes.FORGET_AFTER.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, func, not_, select
from sqlalchemy.orm import Session

from celery_dynbeat.common.run_states import UNFINISHED
from celery_dynbeat.db.index_order import in_index_order
from celery_dynbeat.db.models import Backfill, Node, NodeKind, Run, Schedule
from celery_dynbeat.store import application, due
from celery_dynbeat.store.runs import UNFINISHED_ORDER
from celery_dynbeat.store.schedules import MANAGED_BY_CONFIG, REFUSED_PREFIX
from celery_dynbeat.triggers import KINDS

#: What is more than this is said to be so many "and more".
MAX_COUNTED = 1_000
#: Of the runs that have not ended, those that are looked at.
MAX_RUNS_READ = 10_000
MAX_NODES = 200
MAX_NAMED = 5
#: Characters of an error.
MAX_TEXT = 200


@dataclass(frozen=True, slots=True)
class Count:
    """How many there are; with ``more``, at least so many."""

    count: int
    more: bool = False

    def __str__(self) -> str:
        return f"{self.count}+" if self.more else str(self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The answers of one moment. Instants are None where there is nothing of the kind.

    ``runs`` counts the unfinished runs by status. ``quarantined_first`` and
    ``unsupported_trigger`` hold the owner and name of MAX_NAMED schedules at most, and the error
    or the kind of trigger of each.
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
    backfills: Count
    #: The application that the tables belong to.
    application: str | None
    #: Name and reason of the first MAX_NAMED schedules whose beat_schedule entry is refused.
    refused: Count
    refused_first: Sequence[tuple[str, str]]


@in_index_order
def read(session: Session, *, now: datetime, nodes_since: datetime) -> Tables:
    """Return what the tables say at ``now``; of nodes those with a sign of life since then."""
    quarantined = session.execute(quarantined_statement()).all()
    unknown = due.find_unsupported(session, now=now, limit=MAX_NAMED)
    due_at = session.scalars(due_statement(now=now)).all()
    overdue = session.scalars(overdue_statement(now=now)).all()
    refused = session.execute(refused_statement()).all()
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
        unsupported_trigger=[(row.owner, row.name, row.trigger_kind) for row in unknown],
        overdue=_counted(overdue),
        overdue_since=overdue[0] if overdue else None,
        runs=_by_status(session.execute(runs_statement()).all()),
        backfills=_counted(session.scalars(backfills_statement()).all()),
        application=application.get_name(session.connection()),
        refused=_counted(refused),
        refused_first=[(row.name, row.reason) for row in refused[:MAX_NAMED]],
    )


def _counted(rows: Sequence[Any]) -> Count:
    return Count(min(len(rows), MAX_COUNTED), len(rows) > MAX_COUNTED)


def _by_status(rows: Sequence[Row[Any]]) -> dict[str, Count]:
    found = {row.status: row.number for row in rows}
    more = sum(found.values()) > MAX_RUNS_READ
    return {str(status): Count(found.get(status, 0), more) for status in UNFINISHED}


def due_statement(*, now: datetime) -> Select[Any]:
    """Return the statement for the schedules that beat should have taken up, oldest first."""
    return (
        select(Schedule.next_run_at)
        .where(
            Schedule.next_run_at.is_not(None),
            Schedule.next_run_at <= now,
            Schedule.trigger_kind.in_(KINDS),
        )
        .order_by(Schedule.next_run_at, Schedule.id)
        .limit(MAX_COUNTED + 1)
    )


def overdue_statement(*, now: datetime) -> Select[Any]:
    """Return the statement for the runs that beat should have published again, oldest first."""
    return (
        select(Run.overdue_at)
        .where(Run.overdue_at.is_not(None), Run.overdue_at <= now)
        .order_by(Run.overdue_at)
        .limit(MAX_COUNTED + 1)
    )


def runs_statement() -> Select[Any]:
    """Return the statement that counts the runs that have not ended by their status."""
    unfinished = (
        select(Run.status)
        .where(Run.finished_at.is_(None))
        .order_by(*UNFINISHED_ORDER)
        .limit(MAX_RUNS_READ + 1)
        .subquery()
    )
    status = unfinished.c.status
    return select(status, func.count().label("number")).group_by(status)


def quarantined_statement() -> Select[Any]:
    """Return the statement for the schedules that are quarantined, in any order."""
    # A paused schedule stays quarantined. The quarantine implies the first three conditions. They
    # let MySQL use the index of the unplanned schedules.
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
    """Return the statement for the schedules whose beat_schedule entry is refused, by name."""
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


def backfills_statement() -> Select[Any]:
    """Return the statement for the backfills that go on."""
    return (
        select(Backfill.next_run_at)
        .where(Backfill.next_run_at.is_not(None))
        .order_by(Backfill.next_run_at)
        .limit(MAX_COUNTED + 1)
    )


def nodes_statement(kind: NodeKind, *, since: datetime) -> Select[Any]:
    """Return the statement for the nodes of a kind, those heard of last first."""
    statement = select(Node).where(Node.kind == kind, Node.seen_at >= since)
    return statement.order_by(Node.seen_at.desc(), Node.name).limit(MAX_NODES)
