"""Queries that stop an owner and delete its history, one batch at a time.

Each query reads ids only, so it works for rows that Python cannot read. The history can also belong
to all owners of a group.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Table, delete, select, update
from sqlalchemy.orm import Session

from celery_dynbeat.common.alert_kinds import NOTICE_TARGET, notice_target
from celery_dynbeat.common.states import Action
from celery_dynbeat.common.text import is_group, is_in
from celery_dynbeat.db.alert_models import MESSAGES, AlertMessage
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import (
    CHANGES,
    HOLDS,
    OWNERS,
    REQUESTS,
    RUNS,
    SCHEDULES,
    Change,
    Request,
    Run,
    Schedule,
)
from celery_dynbeat.db.statements import force_index, in_index_order
from celery_dynbeat.store.owners import is_of, with_rows
from celery_dynbeat.store.runs import execute_dml
from celery_dynbeat.store.schedules.change_pages import OWNER_INDEX

#: Messages in memory at the same time.
_MESSAGES = 100
_RUN_INDEX = "ix_dynbeat_run_owner_scheduled_for"


def names_in(session: Session, *, group: str, after: str, limit: int) -> Sequence[str]:
    """Return up to ``limit`` names above ``after`` in a group, in order.

    They are owners with schedules, holds or a row of the owner, and groups with holds or a row.
    """
    found: set[str] = set()
    for column, index in _NAMES:
        part = with_rows(session, column, index, within=group, after=after, limit=limit)
        found.update(part)
    return sorted(found)[:limit]


_NAMES = (
    (SCHEDULES.c.owner, "uq_dynbeat_schedule_owner_name"),
    (HOLDS.c.owner, "ix_dynbeat_hold_owner"),
    (OWNERS.c.owner, "PRIMARY"),
)


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
    """Delete up to ``limit`` runs of an owner or a group; return their number.

    The oldest fire time of an owner comes first.
    """
    ids = force_index(select(Run.id).where(is_of(Run.owner, owner)), Run, _RUN_INDEX)
    order = (Run.owner, Run.scheduled_for) if is_group(owner) else (Run.scheduled_for,)
    return _delete(session, RUNS, session.scalars(ids.order_by(*order).limit(limit)).all())


@in_index_order
def delete_changes(session: Session, *, owner: str, limit: int) -> int:
    """Delete up to ``limit`` changes of an owner or a group, except erasures.

    Return their number.
    """
    ids = force_index(select(Change.id), Change, OWNER_INDEX)
    ids = ids.where(is_of(Change.owner, owner), Change.action != Action.ERASE)
    first = [Change.owner] if is_group(owner) else []
    ids = ids.order_by(*first, Change.changed_at, Change.id).limit(limit)
    return _delete(session, CHANGES, session.scalars(ids).all())


def delete_requests(session: Session, *, owner: str, limit: int) -> int:
    """Delete up to ``limit`` requests of an owner or a group; return their number."""
    ids = select(Request.id).where(is_of(Request.owner, owner)).limit(limit)
    return _delete(session, REQUESTS, session.scalars(ids).all())


@in_index_order
def delete_slots(session: Session, *, owner: str, limit: int) -> int:
    """Delete up to ``limit`` slots of an owner or a group; return their number."""
    # A late import: most processes that delete an owner have no slots.
    from celery_dynbeat.db.slot_models import SLOTS, Slot, SlotScope  # noqa: PLC0415

    execute_dml(session, delete(SlotScope).where(is_of(SlotScope.name, owner)))
    of_owner = select(Slot.id).where(is_of(Slot.owner, owner)).limit(limit)
    # One statement for each partial index.
    waiting = session.scalars(of_owner.where(Slot.admitted_at.is_(None))).all()
    admitted = session.scalars(of_owner.where(Slot.admitted_at.is_not(None))).all()
    return _delete(session, SLOTS, [*waiting, *admitted][:limit])


def forget_in_messages(session: Session, *, owner: str) -> None:
    """Take the schedules of an owner or a group out of the messages about alerts.

    Their counts stay. The notices to the owners are deleted.
    """
    if not is_group(owner):
        notices = select(AlertMessage.id).where(AlertMessage.target == notice_target(owner))
        # By id: a DELETE by target may lock a gap of its index, where beat inserts.
        _delete(session, MESSAGES, session.scalars(notices).all())
    after = 0
    columns = select(AlertMessage.id, AlertMessage.target, AlertMessage.payload)
    columns = columns.order_by(AlertMessage.id).limit(_MESSAGES)
    while rows := session.execute(columns.where(AlertMessage.id > after)).all():
        for row in rows:
            payload = _without_owner(row.payload, owner)
            if payload == row.payload:
                continue
            if row.target.startswith(NOTICE_TARGET):
                _delete(session, MESSAGES, [row.id])
            else:
                changed = update(AlertMessage).where(AlertMessage.id == row.id)
                execute_dml(session, changed.values(payload=payload))
        after = rows[-1].id


def _without_owner(value: Any, owner: str) -> Any:
    """Return a JSON value without the objects in lists whose owner is ``owner`` or lies in it."""
    if isinstance(value, dict):
        return {key: _without_owner(each, owner) for key, each in value.items()}
    if not isinstance(value, list):
        return value
    return [_without_owner(each, owner) for each in value if not _is_about(each, owner)]


def _is_about(value: Any, owner: str) -> bool:
    whose = value.get("owner") if isinstance(value, dict) else None
    return isinstance(whose, str) and is_in(whose, owner)


def _delete(session: Session, table: Table, ids: Sequence[Any]) -> int:
    if ids:
        # The caller's session may choose its database by the mapped class.
        connection = session.connection(bind_arguments={"mapper": Schedule})
        capabilities_of(connection.dialect).delete(connection, table, ids)
    return len(ids)
