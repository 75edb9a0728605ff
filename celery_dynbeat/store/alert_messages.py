"""Queries on unsent alerts and on the messages about them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Row, and_, delete, func, or_, select, update
from sqlalchemy.orm import Session

from celery_dynbeat.db.alert_models import Alert, AlertMessage
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.store.runs import execute_dml

#: Alerts that one message counts.
MAX_TAKEN = 10_000
#: Ids in one statement.
_IDS = 1_000
#: Messages that are read to find the next one. More wait only if many targets do not answer.
_NEXT = 100


class Waiting(NamedTuple):
    """The unsent alerts of a target: since when the oldest waits."""

    target: str
    since: datetime


def waiting(session: Session) -> Sequence[Waiting]:
    """Return the targets with unsent alerts."""
    since = func.min(Alert.unsent_at)
    statement = select(Alert.target, since).where(Alert.unsent_at.is_not(None))
    rows: Any = session.execute(statement.group_by(Alert.target)).all()
    return [Waiting(*row) for row in rows]


def newest_message_at(session: Session, *, target: str) -> datetime | None:
    """Return when the newest message of a target was written."""
    newest = select(AlertMessage.created_at).where(AlertMessage.target == target)
    return session.scalar(newest.order_by(AlertMessage.id.desc()).limit(1))


def lock_unsent(session: Session, *, target: str) -> Sequence[Row[Any]]:
    """Return up to MAX_TAKEN unsent alerts of a target, locked, the oldest first.

    Alerts that another beat has locked are skipped.
    """
    statement: Any = (
        select(Alert.id, Alert.kind, Alert.unsent)
        .where(Alert.unsent_at.is_not(None), Alert.target == target)
        .order_by(Alert.unsent_at, Alert.id)
        .limit(MAX_TAKEN)
        .with_for_update(skip_locked=True)
    )
    return session.execute(statement).all()


def examples(session: Session, alert_ids: Sequence[int]) -> Sequence[tuple[Alert, str | None]]:
    """Return alerts with the tasks of their schedules, in the order of their ids."""
    statement = (
        select(Alert, Schedule.task)
        .outerjoin(Schedule, Schedule.id == Alert.schedule_id)
        .where(Alert.id.in_(alert_ids))
        .order_by(Alert.id)
    )
    return [(alert, task) for alert, task in session.execute(statement)]


def mark_taken(session: Session, alert_ids: Sequence[int]) -> None:
    """Note that a message reports these alerts."""
    for start in range(0, len(alert_ids), _IDS):
        ids = alert_ids[start : start + _IDS]
        taken = update(Alert).where(Alert.id.in_(ids))
        execute_dml(session, taken.values(unsent=None, unsent_at=None))


def add(session: Session, message: AlertMessage) -> None:
    """Insert a message."""
    session.add(message)
    session.flush()


def lease(
    session: Session, *, now: datetime, node: str, until: datetime
) -> Mapping[str, Any] | None:
    """Assign the message that has been due the longest to ``node``; None if there is none.

    Until ``until`` no other beat tries it.
    """
    free = or_(AlertMessage.leased_until.is_(None), AlertMessage.leased_until <= now)
    is_due = and_(AlertMessage.next_try_at <= now, free)
    oldest = select(AlertMessage).where(is_due).order_by(AlertMessage.next_try_at).limit(1)
    row = session.scalars(oldest.with_for_update(skip_locked=True)).one_or_none()
    if row is None:
        return None
    row.leased_by, row.leased_until, row.attempts = node, until, row.attempts + 1
    session.flush()
    return {column.key: getattr(row, column.key) for column in AlertMessage.__table__.columns}


def next_try_at(session: Session) -> datetime | None:
    """Return when the next message can be leased; None without messages that are not ended."""
    columns = (AlertMessage.next_try_at, AlertMessage.leased_until)
    waiting = select(*columns).where(AlertMessage.next_try_at.is_not(None))
    rows: Any = session.execute(waiting.order_by(AlertMessage.next_try_at).limit(_NEXT)).all()
    return min((max(at, leased_until or at) for at, leased_until in rows), default=None)


def end_try(session: Session, *, message_id: int, node: str, values: Mapping[str, Any]) -> bool:
    """Write the result of a try. Return False if the lease has passed to another beat."""
    statement = update(AlertMessage).where(
        AlertMessage.id == message_id, AlertMessage.leased_by == node
    )
    return execute_dml(session, statement.values(leased_by=None, leased_until=None, **values)) == 1


def prune(session: Session, *, before: datetime, limit: int) -> int:
    """Delete up to ``limit`` messages that were written before ``before`` and have ended."""
    old = select(AlertMessage.id).where(
        AlertMessage.created_at < before, AlertMessage.next_try_at.is_(None)
    )
    ids = session.scalars(old.order_by(AlertMessage.id).limit(limit)).all()
    if ids:
        execute_dml(session, delete(AlertMessage).where(AlertMessage.id.in_(ids)))
    return len(ids)
