"""Queries that stop an owner and delete its history, one batch at a time.

Each query reads ids only, so it works for rows that Python cannot read.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Table, select, update
from sqlalchemy.orm import Session

from celery_dynbeat.common.states import Action
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import (
    CHANGES,
    RUNS,
    Change,
    Run,
    Schedule,
)
from celery_dynbeat.db.statements import force_index, in_index_order
from celery_dynbeat.store.runs import execute_dml
from celery_dynbeat.store.schedules.change_pages import OWNER_INDEX

_RUN_INDEX = "ix_dynbeat_run_owner_scheduled_for"


@in_index_order
def pause_all(session: Session, *, owner: str, reason: str, now: datetime) -> None:
    """Pause the locked schedules of ``owner``."""
    values: dict[Any, Any] = {
        Schedule.enabled: False,
        Schedule.paused_reason: reason,
        Schedule.paused_until: None,
        Schedule.next_run_at: None,
        Schedule.held_at: None,
        Schedule.version: Schedule.version + 1,
        Schedule.updated_at: now,
    }
    execute_dml(session, update(Schedule).where(Schedule.owner == owner).values(values))


@in_index_order
def delete_runs(session: Session, *, owner: str, limit: int) -> int:
    """Delete up to ``limit`` runs of an owner, the oldest first; return their number."""
    ids = force_index(select(Run.id).where(Run.owner == owner), Run, _RUN_INDEX)
    oldest = ids.order_by(Run.scheduled_for).limit(limit)
    return _delete(session, RUNS, session.scalars(oldest).all())


@in_index_order
def delete_changes(session: Session, *, owner: str, limit: int) -> int:
    """Delete up to ``limit`` changes of an owner, except erasures; return their number."""
    ids = force_index(select(Change.id), Change, OWNER_INDEX)
    ids = ids.where(Change.owner == owner, Change.action != Action.ERASE)
    ids = ids.order_by(Change.changed_at, Change.id).limit(limit)
    return _delete(session, CHANGES, session.scalars(ids).all())


def _delete(session: Session, table: Table, ids: Sequence[Any]) -> int:
    if ids:
        # The caller's session may choose its database by the mapped class.
        connection = session.connection(bind_arguments={"mapper": Schedule})
        capabilities_of(connection.dialect).delete(connection, table, ids)
    return len(ids)
