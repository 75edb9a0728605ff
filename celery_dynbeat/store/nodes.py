"""Queries on nodes, one function each."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    and_,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Node, NodeKind, Run
from celery_dynbeat.db.statements import RowLockedError

MICROSECOND = timedelta(microseconds=1)
#: The time for which a silent node is stored. It is long, because a clock that is set forward makes
#: running nodes silent.
NODE_RETENTION = timedelta(days=30)
#: Longer than any useful dynbeat_node_timeout.
NOTIFIER_FRESH_FOR = timedelta(hours=1)
#: What each heartbeat writes.
_PROGRESS = ("seen_at", "progressed_at", "error", "notifier", "outages", "clock_offset")
#: Workers. If there are more, the health check makes no statement about queues and tasks.
MAX_WORKERS = 500
#: Different lists of tasks that are read. Workers of one kind have the same list.
MAX_TASK_LISTS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHeartbeat:
    """One heartbeat of a node: its last progress, and the error that prevents progress.

    Instants follow the database's clock. ``notifier`` is how a beat receives notifications.
    ``outages`` is the report of what it cannot publish to. ``clock_offset`` is in seconds.
    ``queues`` and ``tasks`` belong to a worker, and are JSON arrays. ``entries_digest`` belongs to
    a beat.
    """

    kind: NodeKind
    name: str
    pid: int
    seen_at: datetime
    progressed_at: datetime | None = None
    error: str | None = None
    notifier: str | None = None
    outages: str | None = None
    clock_offset: float | None = None
    queues: str | None = None
    tasks: str | None = None
    #: What a beat's beat_schedule contains. Written only when the node registers.
    entries_digest: str | None = None


def register(session: Session, *, heartbeat: NodeHeartbeat, started_at: datetime) -> None:
    """Register a node and replace the row of another process with the same name.

    Rows of nodes that have been silent for NODE_RETENTION are deleted.
    """
    key = (heartbeat.kind, heartbeat.name)
    # Before the row of the predecessor is deleted, which can be the only one with this digest.
    entries_seen_at = _first_seen(session, heartbeat)
    if _lock_free(session, key) is not None:
        session.execute(delete(Node).where(_is(key)))
    # The clock may have been set back. Then runs that the predecessor started must still count as
    # older than this node.
    latest_start = session.scalar(_started_after(heartbeat.seen_at, worker=heartbeat.name))
    started_at = started_at if latest_start is None else latest_start + MICROSECOND
    _delete_before(session, heartbeat.seen_at - NODE_RETENTION)
    values = {
        **asdict(heartbeat),
        "started_at": started_at,
        "entries_seen_at": entries_seen_at,
    }
    session.execute(insert(Node).values(values))


def _first_seen(session: Session, heartbeat: NodeHeartbeat) -> datetime | None:
    """Return when a beat with the entries of this beat started first; None for a worker."""
    if heartbeat.entries_digest is None:
        return None
    seen = select(func.min(Node.entries_seen_at)).where(
        Node.kind == NodeKind.BEAT, Node.entries_digest == heartbeat.entries_digest
    )
    return session.scalar(seen) or heartbeat.seen_at


def has_newer_entries(
    session: Session, *, name: str, silent_since: datetime, counts_stopped: bool
) -> bool:
    """Return whether a living beat has newer entries of ``beat_schedule`` than the beat ``name``.

    A beat without a heartbeat after ``silent_since`` is not alive. ``counts_stopped`` also counts
    a beat that has stopped since then and may be restarting.
    """
    own = session.execute(
        select(Node.entries_seen_at, Node.entries_digest).where(_is((NodeKind.BEAT, name)))
    ).one_or_none()
    if own is None or own.entries_seen_at is None:
        return False
    is_later = or_(
        Node.entries_seen_at > own.entries_seen_at,
        and_(Node.entries_seen_at == own.entries_seen_at, Node.entries_digest > own.entries_digest),
    )
    newer = select(Node.name).where(
        Node.kind == NodeKind.BEAT,
        Node.entries_digest != own.entries_digest,
        is_later,
        Node.seen_at > silent_since,
    )
    if not counts_stopped:
        newer = newer.where(Node.stopped_at.is_(None))
    return session.scalar(newer.limit(1)) is not None


def _is(key: tuple[str, str]) -> ColumnElement[bool]:
    kind, name = key
    return and_(Node.kind == kind, Node.name == name)


def _lock_free(session: Session, key: tuple[str, str]) -> int | None:
    """Return the pid of a node and lock its row, or return None if the node has no row.

    Raises RowLockedError if another transaction has locked the row, because no heartbeat waits.
    """
    found = select(Node.pid).where(_is(key))
    pid = session.scalar(found.with_for_update(skip_locked=True))
    if pid is None and session.scalar(found) is not None:
        raise RowLockedError
    return pid


def _delete_before(session: Session, before: datetime) -> None:
    """Delete the rows of nodes that have been silent since then, except locked rows."""
    silent = select(Node.kind, Node.name).where(Node.seen_at < before)
    for row in session.execute(silent).all():
        with suppress(RowLockedError):
            _lock_free(session, (row.kind, row.name))
            session.execute(delete(Node).where(_is((row.kind, row.name))))


def _started_after(now: datetime, *, worker: str) -> Any:
    return select(func.max(Run.started_at)).where(
        Run.finished_at.is_(None),
        Run.status == Status.RUNNING,
        Run.worker == worker,
        Run.started_at > now,
    )


def refresh(session: Session, *, heartbeat: NodeHeartbeat, with_names: bool = False) -> bool:
    """Write a heartbeat. Return False if the row is missing or belongs to another process.

    The names of queues and tasks are long and rarely change. ``with_names`` also writes them.
    Raises RowLockedError if another transaction has locked the row.
    """
    key = (heartbeat.kind, heartbeat.name)
    if _lock_free(session, key) != heartbeat.pid:
        return False
    names = (*_PROGRESS, "queues", "tasks") if with_names else _PROGRESS
    values = {name: getattr(heartbeat, name) for name in names}
    statement = update(Node).where(_is(key)).values(**values, stopped_at=None)
    return bool(session.execute(statement).rowcount)  # type: ignore[attr-defined]


def deregister(session: Session, *, kind: NodeKind, name: str, pid: int, now: datetime) -> None:
    """Record that the node has shut down. Raises RowLockedError like ``refresh``."""
    if _lock_free(session, (kind, name)) == pid:
        session.execute(update(Node).where(_is((kind, name))).values(stopped_at=now))


def get(session: Session, *, kind: NodeKind, name: str) -> Node | None:
    """Return the node, or None if no node of that name is registered."""
    return session.get(Node, (kind, name), populate_existing=True)


def beat_listens_to_broker() -> ColumnElement[bool]:
    """Return the condition that a running beat receives its notifications from the broker."""
    return exists().where(
        Node.kind == NodeKind.BEAT,
        Node.notifier == "broker",
        Node.stopped_at.is_(None),
        # A killed beat leaves its row behind. Only PostgreSQL runs this query, so it may use its
        # function for the clock.
        Node.seen_at > func.clock_timestamp() - NOTIFIER_FRESH_FOR,
    )


def read_workers(
    session: Session, *, seen_since: datetime, stopped_since: datetime
) -> Sequence[Row[str | None, str | None]]:
    """Return the queues and the tasks of the workers that are alive or have just ended.

    They are JSON arrays, or None. One row more than MAX_WORKERS means that there are more.
    """
    is_alive = and_(Node.stopped_at.is_(None), Node.seen_at >= seen_since)
    statement = (
        select(Node.queues, Node.tasks)
        .where(Node.kind == NodeKind.WORKER, or_(is_alive, Node.stopped_at >= stopped_since))
        .limit(MAX_WORKERS + 1)
    )
    return session.execute(statement).all()


def task_lists(session: Session, *, seen_since: datetime) -> Sequence[str]:
    """Return the different lists of task names of the workers that are alive, as JSON arrays."""
    is_alive = and_(Node.stopped_at.is_(None), Node.seen_at >= seen_since)
    lists = select(Node.tasks).where(Node.kind == NodeKind.WORKER, is_alive)
    different = lists.where(Node.tasks.is_not(None)).distinct().limit(MAX_TASK_LISTS)
    return [tasks for tasks in session.scalars(different) if tasks is not None]
