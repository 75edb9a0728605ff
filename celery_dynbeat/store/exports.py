"""Queries of an export that no list of the API answers."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from celery_dynbeat.db.index_order import force_index
from celery_dynbeat.db.models import Hold, Owner
from celery_dynbeat.store.holds import OWNER_INDEX

Rows = list[Mapping[str, Any]]


def timezone_of(session: Session, *, owner: str) -> str | None:
    """Return the owner's time zone, None if it has none."""
    return session.scalar(select(Owner.timezone).where(Owner.owner == owner))


def holds(session: Session, *, owner: str, after_id: int, limit: int) -> Rows:
    """Return the next holds of ``owner`` by id."""
    statement = force_index(select(*Hold.__table__.c), Hold, OWNER_INDEX)
    statement = statement.where(Hold.owner == owner, Hold.id > after_id)
    return _rows(session, statement.order_by(Hold.id).limit(limit))


def _rows(session: Session, statement: Select[Any]) -> Rows:
    return [dict(row) for row in session.execute(statement).mappings()]
