"""Beat's queries on the schedules that it checks without an event."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from celery_dynbeat.db.index_order import force_index, in_index_order
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.db.tables import ALERT_WATCHES
from celery_dynbeat.db.types import UtcDateTime
from celery_dynbeat.store.rows import LockedRows, read
from celery_dynbeat.store.runs import execute_dml

_WATCH = ALERT_WATCHES.c
_DUE_INDEX = "ix_dynbeat_alert_watch_due_at"


@in_index_order
def next_due(session: Session) -> datetime | None:
    """Return when the next check is due, None if no schedule is watched. Reads one row."""
    earliest = force_index(select(_WATCH.due_at), ALERT_WATCHES, _DUE_INDEX)
    found: datetime | None = session.scalar(earliest.order_by(_WATCH.due_at).limit(1))
    return found


@in_index_order
def lock_due(session: Session, *, now: datetime, limit: int) -> LockedRows:
    """Return schedule_id and due_at of watches due at ``now``, locked for this transaction."""
    statement = force_index(select(ALERT_WATCHES), ALERT_WATCHES, _DUE_INDEX)
    statement = statement.where(_WATCH.due_at <= now).order_by(_WATCH.due_at).limit(limit)
    return read(session, statement.with_for_update(skip_locked=True), key=_WATCH.schedule_id)


def set_due(session: Session, due_at: Mapping[int, datetime]) -> None:
    """Set when locked watches are due next."""
    if due_at:
        values = [{"watched": key, "due": instant} for key, instant in due_at.items()]
        session.connection(bind_arguments={"mapper": Schedule}).execute(_SET_DUE, values)


_SET_DUE = (
    ALERT_WATCHES.update()
    .where(_WATCH.schedule_id == bindparam("watched"))
    .values(due_at=bindparam("due", type_=UtcDateTime))
)


def delete(session: Session, ids: Sequence[int]) -> None:
    """Delete locked watches."""
    if ids:
        execute_dml(session, ALERT_WATCHES.delete().where(_WATCH.schedule_id.in_(ids)))
