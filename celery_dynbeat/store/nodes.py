"""Questions to the table of living nodes, one function each."""

from datetime import datetime, timedelta

from sqlalchemy import delete, insert, update
from sqlalchemy.orm import Session

from celery_dynbeat.db.models import Node, NodeKind

FORGET_AFTER = timedelta(days=1)


def enter(
    session: Session,
    *,
    kind: NodeKind,
    name: str,
    pid: int,
    started_at: datetime,
    now: datetime,
) -> None:
    """Register a node; another process of the same name is taken to have ended.

    Nodes that have been silent for FORGET_AFTER are forgotten: they count as dead anyway.
    """
    session.execute(delete(Node).where(Node.kind == kind, Node.name == name))
    session.execute(delete(Node).where(Node.seen_at < now - FORGET_AFTER))
    values = {"kind": kind, "name": name, "pid": pid, "started_at": started_at, "seen_at": now}
    session.execute(insert(Node).values(**values))


def refresh(session: Session, *, kind: NodeKind, name: str, pid: int, now: datetime) -> bool:
    """Say that the node is alive; False when its row is gone or is another process's by now."""
    statement = (
        update(Node)
        .where(Node.kind == kind, Node.name == name, Node.pid == pid)
        .values(seen_at=now, stopped_at=None)
    )
    return bool(session.execute(statement).rowcount)  # type: ignore[attr-defined]


def leave(session: Session, *, kind: NodeKind, name: str, pid: int, now: datetime) -> None:
    """Say that the node has ended in good order."""
    session.execute(
        update(Node)
        .where(Node.kind == kind, Node.name == name, Node.pid == pid)
        .values(stopped_at=now),
    )


def get(session: Session, *, kind: NodeKind, name: str) -> Node | None:
    """Return the node, or None when none of that name was ever seen."""
    return session.get(Node, (kind, name), populate_existing=True)
