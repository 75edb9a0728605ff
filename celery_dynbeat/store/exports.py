"""Queries of an export that no list of the API answers."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from celery_dynbeat.db.index_order import force_index
from celery_dynbeat.db.models import Backfill, Hold, Owner, Rerun, Schedule
from celery_dynbeat.store.holds import OWNER_INDEX

Rows = list[Mapping[str, Any]]


def timezone_of(session: Session, *, owner: str) -> str | None:
    """Return the owner's time zone, None if it has none."""
    return session.scalar(select(Owner.timezone).where(Owner.owner == owner))


def backfills(session: Session, *, owner: str, after_id: int, limit: int) -> Rows:
    """Return the next backfills of ``owner`` by id, with the names of their schedules."""
    columns = [each for each in Backfill.__table__.c if each.name not in _INTERNAL]
    statement = select(Schedule.owner, Schedule.name, *columns)
    statement = statement.join(Schedule, Schedule.id == Backfill.schedule_id)
    statement = statement.where(Schedule.owner == owner, Backfill.id > after_id)
    return _rows(session, statement.order_by(Backfill.id).limit(limit))


def reruns(session: Session, *, owner: str, after_id: int, limit: int) -> Rows:
    """Return the owner's next requests to run ended runs again, by id."""
    columns = [each for each in Rerun.__table__.c if each.name not in _INTERNAL]
    statement = select(*columns).where(Rerun.owner == owner, Rerun.id > after_id)
    return _rows(session, statement.order_by(Rerun.id).limit(limit))


def holds(session: Session, *, owner: str, after_id: int, limit: int) -> Rows:
    """Return the next holds of ``owner`` by id."""
    statement = force_index(select(*Hold.__table__.c), Hold, OWNER_INDEX)
    statement = statement.where(Hold.owner == owner, Hold.id > after_id)
    return _rows(session, statement.order_by(Hold.id).limit(limit))


def _rows(session: Session, statement: Select[Any]) -> Rows:
    return [dict(row) for row in session.execute(statement).mappings()]


#: Where beat continues. It describes no one.
_INTERNAL = frozenset(
    {
        *("schedule_id", "next_fire_at", "next_run_at"),
        *("after_at", "after_id", "waiting_ids", "unfinished_ids"),
    }
)
