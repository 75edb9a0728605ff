"""Queries that add and delete rows of the audit: one row for each edit."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

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
def delete_before(session: Session, *, before: datetime, limit: int) -> int:
    """Delete up to ``limit`` changes from before ``before``, oldest first; return their number.

    Rows that another transaction has locked are skipped.
    """
    old = select(Change.id).where(Change.changed_at < before)
    old = force_index(old, Change, TIME_INDEX).order_by(Change.changed_at, Change.id).limit(limit)
    return _delete(session, session.scalars(old.with_for_update(skip_locked=True)).all())


def _delete(session: Session, ids: Sequence[int]) -> int:
    if ids:
        capabilities = capabilities_of(session.get_bind(Change).dialect)
        connection = session.connection(bind_arguments={"mapper": Change})
        capabilities.delete(connection, CHANGES, ids)
    return len(ids)
