"""Queries that list alerts, and what the targets of their messages got."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row, and_, case, func, select
from sqlalchemy.orm import Session

from celery_dynbeat.db.alert_models import Alert, AlertMessage
from celery_dynbeat.db.index_order import force_index, in_index_order
from celery_dynbeat.store.alerts import CHECKED_INDEX

#: An alert, and what its last message became.
_WITH_MESSAGE: Any = (
    Alert,
    *(AlertMessage.created_at, AlertMessage.next_try_at, AlertMessage.error),
    *(AlertMessage.sent_at, AlertMessage.dropped_at),
)
RECOVERED_INDEX = "ix_dynbeat_alert_recovered_at"
OPEN_INDEX = "ix_dynbeat_alert_owner_open"


def _alerts() -> Any:
    return select(*_WITH_MESSAGE).outerjoin(AlertMessage, AlertMessage.id == Alert.message_id)


def page(
    session: Session, *, owner: str | None, only_open: bool, after: int, limit: int
) -> Sequence[Row[Any]]:
    """Return up to ``limit`` alerts with an id above ``after``, in the order of their ids.

    ``owner`` None: of all owners. Each row has the ``Alert`` and columns of its last message.
    """
    statement = _alerts().where(Alert.id > after)
    if owner is not None:
        statement = statement.where(Alert.owner == owner)
    if only_open and owner is not None:
        # Not checked_at: the index has the rows of this condition in the order of their ids.
        statement = force_index(statement, Alert, OPEN_INDEX).where(Alert.recovered_at.is_(None))
    elif only_open:
        statement = statement.where(Alert.checked_at.is_not(None))
    rows: Sequence[Row[Any]] = session.execute(statement.order_by(Alert.id).limit(limit)).all()
    return rows


@in_index_order
def some_open(session: Session, *, limit: int) -> Sequence[Row[Any]]:
    """Return up to ``limit`` open alerts of all owners as ``page`` does, in any order."""
    statement = force_index(_alerts(), Alert, CHECKED_INDEX).where(Alert.checked_at.is_not(None))
    return session.execute(statement.order_by(Alert.checked_at, Alert.id).limit(limit)).all()


@in_index_order
def newest_recovered(session: Session, *, limit: int) -> Sequence[Row[Any]]:
    """Return the ``limit`` alerts of all owners that recovered last, as ``page`` does."""
    statement = force_index(_alerts(), Alert, RECOVERED_INDEX)
    statement = statement.where(Alert.recovered_at.is_not(None))
    order = (Alert.recovered_at.desc(), Alert.id.desc())
    return session.execute(statement.order_by(*order).limit(limit)).all()


def lock_open(session: Session, *, owner: str | None, alert_id: int) -> Alert | None:
    """Return an open alert, locked, of this owner if one is given. None: there is none."""
    statement: Any = select(Alert).where(Alert.id == alert_id, Alert.checked_at.is_not(None))
    if owner is not None:
        statement = statement.where(Alert.owner == owner)
    statement = statement.with_for_update().execution_options(populate_existing=True)
    alert: Alert | None = session.scalars(statement).one_or_none()
    return alert


def get(session: Session, *, alert_id: int) -> Row[Any]:
    """Return an alert that exists, as ``page`` does."""
    row: Row[Any] = session.execute(_alerts().where(Alert.id == alert_id)).one()
    return row


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
