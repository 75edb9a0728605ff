"""Queries that list alerts, and what the targets of their messages got."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row, and_, case, func, select
from sqlalchemy.orm import Session

from celery_dynbeat.db.alert_models import Alert, AlertMessage


def page(
    session: Session, *, owner: str | None, only_open: bool, after: int, limit: int
) -> Sequence[Alert]:
    """Return up to ``limit`` alerts with an id above ``after``, in the order of their ids.

    ``owner`` None: of all owners.
    """
    statement: Any = select(Alert).where(Alert.id > after)
    if owner is not None:
        statement = statement.where(Alert.owner == owner)
    if only_open:
        statement = statement.where(Alert.checked_at.is_not(None))
    alerts: Sequence[Alert] = session.scalars(statement.order_by(Alert.id).limit(limit)).all()
    return alerts


#: Unsent alerts of a target that are counted.
MAX_UNSENT = 10_000


def message_counts(session: Session) -> Mapping[str, Row[Any]]:
    """Return, by target, the number of its messages in each state. Reads all messages."""
    message = AlertMessage
    waits = message.next_try_at.is_not(None)
    states = {
        "waiting": waits,
        "failing": and_(waits, message.error.is_not(None)),
        "sent": message.sent_at.is_not(None),
        "dropped": message.dropped_at.is_not(None),
    }
    counts = [func.count(case((state, 1))).label(name) for name, state in states.items()]
    statement: Any = select(
        message.target,
        *counts,
        func.max(message.sent_at).label("last_sent_at"),
        func.min(message.next_try_at).label("next_try_at"),
        func.max(case((message.error.is_not(None), message.id))).label("failed_id"),
    )
    return {row.target: row for row in session.execute(statement.group_by(message.target))}


def errors_of(session: Session, message_ids: Sequence[int]) -> Mapping[int, str]:
    """Return the errors of messages by their ids."""
    failed = select(AlertMessage.id, AlertMessage.error).where(AlertMessage.id.in_(message_ids))
    return {row.id: row.error for row in session.execute(failed)}


def count_unsent(session: Session, *, target: str) -> int:
    """Return the number of alerts of a target that no message reports yet, up to MAX_UNSENT."""
    unsent = select(Alert.id).where(Alert.target == target, Alert.unsent_at.is_not(None))
    counted = select(func.count()).select_from(unsent.limit(MAX_UNSENT).subquery())
    return session.scalar(counted) or 0
