"""Queries that add, read and delete rows of the audit: one row for each edit."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import func, insert, or_, select
from sqlalchemy.orm import Session

from celery_dynbeat.common.states import Action
from celery_dynbeat.db import statements
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import CHANGES, Change, Schedule
from celery_dynbeat.db.statements import force_index, in_index_order

TIME_INDEX = "ix_dynbeat_change_changed_at"

#: A constant: building it with its values takes longer than executing it.
_INSERT = insert(CHANGES)


def add(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert changes that all have the same columns."""
    # The caller's session may choose its database by the mapped class.
    bind = {"mapper": Schedule}
    if len(rows) == 1:
        session.execute(_INSERT, rows[0], bind_arguments=bind)
    elif rows:
        statements.insert(session.connection(bind_arguments=bind), CHANGES, rows)


@in_index_order
def new_triggers(
    session: Session, *, owner: str, name: str, actor: str, since: datetime, limit: int
) -> list[Any]:
    """Return the triggers that ``actor`` gave the schedule since ``since``, newest first."""
    found = (
        select(Change.new_values)
        .where(Change.owner == owner, Change.name == name, Change.changed_at >= since)
        .where(Change.action == Action.UPDATE, Change.actor == actor)
        .order_by(Change.changed_at.desc(), Change.id.desc())
        .limit(limit)
    )
    return [each["trigger"] for each in session.scalars(found) if each and "trigger" in each]


@in_index_order
def keys_before(
    session: Session, *, before: datetime, after: tuple[datetime, int] | None, limit: int
) -> Sequence[tuple[datetime, int]]:
    """Return ``changed_at`` and id of up to ``limit`` changes from before ``before``, oldest first.

    ``after`` is the last key of the page before.
    """
    old = force_index(select(Change.changed_at, Change.id), Change, TIME_INDEX)
    old = old.where(Change.changed_at < before).order_by(Change.changed_at, Change.id)
    if after is not None:
        at, change_id = after
        old = old.where(Change.changed_at >= at, or_(Change.changed_at > at, Change.id > change_id))
    return [(row.changed_at, row.id) for row in session.execute(old.limit(limit))]


@in_index_order
def delete(session: Session, ids: Sequence[int]) -> int:
    """Delete changes; return their number. Rows that another transaction has locked stay."""
    free = select(Change.id).where(Change.id.in_(ids)).with_for_update(skip_locked=True)
    locked = session.scalars(free).all()
    if locked:
        capabilities = capabilities_of(session.get_bind(Change).dialect)
        connection = session.connection(bind_arguments={"mapper": Change})
        capabilities.delete(connection, CHANGES, locked)
    return len(locked)


@in_index_order
def count_before(session: Session, *, before: datetime) -> int:
    """Return the number of changes from before ``before``."""
    old = force_index(select(func.count()).select_from(Change), Change, TIME_INDEX)
    return session.scalar(old.where(Change.changed_at < before)) or 0
