"""Names that begin with a text, to complete a text. Each query reads a bounded number of rows."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from celery_dynbeat.db.models import Node, NodeKind, Schedule
from celery_dynbeat.db.statements import force_index, in_index_order

#: Different lists of tasks that are read. Workers of one kind have the same list.
MAX_TASK_LISTS = 50
_OWNER_INDEX = "uq_dynbeat_schedule_owner_name"


@in_index_order
def owners(session: Session, *, prefix: str, limit: int) -> Sequence[str]:
    """Return up to ``limit`` owners that begin with ``prefix``, in the order of the index.

    A loose index scan: each query jumps to the next owner, however many schedules one has.
    """
    found: list[str] = []
    owner = _first_owner(session, Schedule.owner >= prefix)
    # By code point, the owners with the prefix follow each other.
    while owner is not None and len(found) < limit and owner.startswith(prefix):
        found.append(owner)
        owner = _first_owner(session, Schedule.owner > owner)
    return found


def _first_owner(session: Session, condition: Any) -> str | None:
    first = force_index(select(Schedule.owner), Schedule, _OWNER_INDEX).where(condition)
    owner: str | None = session.scalar(first.order_by(Schedule.owner).limit(1))
    return owner


def task_lists(session: Session, *, seen_since: datetime) -> Sequence[str]:
    """Return the different lists of task names of the workers that are alive, as JSON arrays."""
    statement = (
        select(Node.tasks)
        .where(
            Node.kind == NodeKind.WORKER,
            Node.stopped_at.is_(None),
            Node.seen_at >= seen_since,
            Node.tasks.is_not(None),
        )
        .distinct()
        .limit(MAX_TASK_LISTS)
    )
    return [tasks for tasks in session.scalars(statement) if tasks is not None]
