"""Questions to the table of living nodes, one function each."""

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, delete, exists, func, insert, select, update
from sqlalchemy.orm import Session

from celery_dynbeat.common.run_states import Status
from celery_dynbeat.db.index_order import force_index, in_index_order
from celery_dynbeat.db.models import Node, NodeKind, Run
from celery_dynbeat.store.runs import UNFINISHED_INDEX

MICROSECOND = timedelta(microseconds=1)
#: Long, because a clock that is set forward makes living nodes seem silent.
NODE_RETENTION = timedelta(days=30)
#: Longer than any dynbeat_node_timeout that is of use.
NOTIFIER_FRESH_FOR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHeartbeat:
    """What a node says of itself: that it lives, when it last made progress, and what hinders it.

    Instants are those of the database's clock. ``notifier`` is how a beat receives notifications,
    ``outages`` the report of what it cannot publish to.
    """

    kind: NodeKind
    name: str
    pid: int
    seen_at: datetime
    progressed_at: datetime | None = None
    error: str | None = None
    notifier: str | None = None
    outages: str | None = None


@in_index_order
def register(session: Session, *, heartbeat: NodeHeartbeat, started_at: datetime) -> None:
    """Register a node; another process of the same name is taken to have ended.

    Nodes that have been silent for NODE_RETENTION are forgotten: they count as dead anyway.
    """
    session.execute(delete(Node).where(Node.kind == heartbeat.kind, Node.name == heartbeat.name))
    # What a predecessor began before the clock was set back must not seem to be this node's.
    left = session.scalar(_started_after(heartbeat.seen_at, worker=heartbeat.name))
    started_at = started_at if left is None else left + MICROSECOND
    session.execute(delete(Node).where(Node.seen_at < heartbeat.seen_at - NODE_RETENTION))
    session.execute(insert(Node).values(**asdict(heartbeat), started_at=started_at))


def _started_after(now: datetime, *, worker: str) -> Any:
    return force_index(select(func.max(Run.started_at)), Run, UNFINISHED_INDEX).where(
        Run.finished_at.is_(None),
        Run.status == Status.RUNNING,
        Run.worker == worker,
        Run.started_at > now,
    )


def refresh(session: Session, *, heartbeat: NodeHeartbeat) -> bool:
    """Say that the node is alive; False when its row is gone or is another process's by now."""
    statement = (
        update(Node)
        .where(Node.kind == heartbeat.kind, Node.name == heartbeat.name, Node.pid == heartbeat.pid)
        .values(
            seen_at=heartbeat.seen_at,
            progressed_at=heartbeat.progressed_at,
            error=heartbeat.error,
            notifier=heartbeat.notifier,
            outages=heartbeat.outages,
            stopped_at=None,
        )
    )
    return bool(session.execute(statement).rowcount)  # type: ignore[attr-defined]


def deregister(session: Session, *, kind: NodeKind, name: str, pid: int, now: datetime) -> None:
    """Say that the node has ended in good order."""
    session.execute(
        update(Node)
        .where(Node.kind == kind, Node.name == name, Node.pid == pid)
        .values(stopped_at=now),
    )


def get(session: Session, *, kind: NodeKind, name: str) -> Node | None:
    """Return the node, or None when none of that name was ever seen."""
    return session.get(Node, (kind, name), populate_existing=True)


def beat_listens_to_broker() -> ColumnElement[bool]:
    """Return the condition that a living beat receives its notifications from the broker."""
    return exists().where(
        Node.kind == NodeKind.BEAT,
        Node.notifier == "broker",
        Node.stopped_at.is_(None),
        # A beat that was killed leaves its row. PostgreSQL's clock: no other database asks this.
        Node.seen_at > func.clock_timestamp() - NOTIFIER_FRESH_FOR,
    )
