"""Queries that stop an owner and delete its history, one batch at a time.

Each reads ids only, so it works for rows that Python cannot read.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Table, delete, select, update
from sqlalchemy.orm import Session

from celery_dynbeat.common.alert_kinds import notice_target
from celery_dynbeat.common.states import Action
from celery_dynbeat.db.alert_models import MESSAGES, AlertMessage
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import CHANGES, REQUESTS, RUNS, Change, Request, Run, Schedule
from celery_dynbeat.db.statements import force_index, in_index_order
from celery_dynbeat.store.runs import execute_dml
from celery_dynbeat.store.schedules.changes import OWNER_INDEX

#: Messages in memory at the same time.
_MESSAGES = 100
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
    """Delete up to ``limit`` runs of ``owner``, oldest fire time first; return their number."""
    ids = force_index(select(Run.id).where(Run.owner == owner), Run, _RUN_INDEX)
    return _delete(
        session, RUNS, session.scalars(ids.order_by(Run.scheduled_for).limit(limit)).all()
    )


@in_index_order
def delete_changes(session: Session, *, owner: str, limit: int) -> int:
    """Delete up to ``limit`` changes of ``owner``, except its erasures; return their number."""
    ids = force_index(select(Change.id), Change, OWNER_INDEX)
    ids = ids.where(Change.owner == owner, Change.action != Action.ERASE)
    ids = ids.order_by(Change.changed_at, Change.id).limit(limit)
    return _delete(session, CHANGES, session.scalars(ids).all())


def delete_requests(session: Session, *, owner: str, limit: int) -> int:
    """Delete up to ``limit`` requests of ``owner``; return their number."""
    ids = select(Request.id).where(Request.owner == owner).limit(limit)
    return _delete(session, REQUESTS, session.scalars(ids).all())


@in_index_order
def delete_slots(session: Session, *, owner: str, limit: int) -> int:
    """Delete up to ``limit`` slots of ``owner``; return their number."""
    # A late import: most processes that delete an owner have no slots.
    from celery_dynbeat.db.slot_models import SLOTS, Slot, SlotScope  # noqa: PLC0415

    execute_dml(session, delete(SlotScope).where(SlotScope.name == owner))
    ids = select(Slot.id).where(Slot.owner == owner).limit(limit)
    return _delete(session, SLOTS, session.scalars(ids).all())


def forget_in_messages(session: Session, *, owner: str) -> None:
    """Take the schedules of ``owner`` out of the messages about alerts. Their counts stay.

    The notices to the owner are deleted.
    """
    notices = select(AlertMessage.id).where(AlertMessage.target == notice_target(owner))
    # By id: a DELETE by target may lock a gap of its index, where beat inserts.
    _delete(session, MESSAGES, session.scalars(notices).all())
    after = 0
    columns = select(AlertMessage.id, AlertMessage.payload).order_by(AlertMessage.id)
    while rows := session.execute(columns.where(AlertMessage.id > after).limit(_MESSAGES)).all():
        for row in rows:
            payload = _without_owner(row.payload, owner)
            if payload != row.payload:
                changed = update(AlertMessage).where(AlertMessage.id == row.id)
                execute_dml(session, changed.values(payload=payload))
        after = rows[-1].id


def _without_owner(value: Any, owner: str) -> Any:
    """Return a JSON value without the objects in lists whose owner is ``owner``."""
    if isinstance(value, dict):
        return {key: _without_owner(each, owner) for key, each in value.items()}
    if not isinstance(value, list):
        return value
    kept = (each for each in value if not (isinstance(each, dict) and each.get("owner") == owner))
    return [_without_owner(each, owner) for each in kept]


def _delete(session: Session, table: Table, ids: Sequence[Any]) -> int:
    if ids:
        # The caller's session may choose its database by the mapped class.
        connection = session.connection(bind_arguments={"mapper": Schedule})
        capabilities_of(connection.dialect).delete(connection, table, ids)
    return len(ids)
