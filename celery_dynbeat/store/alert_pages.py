"""Queries that list alerts."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from celery_dynbeat.db.alert_models import Alert


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
