"""Queries on the schedules that beat checks for alerts without an event: silent, frequent."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, select, tuple_, update
from sqlalchemy.orm import Session

from celery_dynbeat.db import batches
from celery_dynbeat.db.alert_models import AlertWatch
from celery_dynbeat.db.index_order import in_index_order
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.db.tables import ALERT_WATCHES
from celery_dynbeat.store.runs import execute_dml

#: Keys in one SELECT.
_MAX_KEYS = 500


@in_index_order
def add(session: Session, keys: Sequence[tuple[str, str]], *, due_at: datetime) -> None:
    """Insert a row for each of the schedules with these owners and names."""
    for part in batches.in_parts(keys, _MAX_KEYS):
        ids = select(Schedule.id).where(tuple_(Schedule.owner, Schedule.name).in_(part))
        _insert(session, session.scalars(ids).all(), due_at)


@in_index_order
def add_missing(session: Session, *, after: int, limit: int, due_at: datetime) -> int | None:
    """Insert the missing rows of the next ``limit`` schedules whose ids are above ``after``.

    Return the last of these ids, None if there are no more.
    """
    following = select(Schedule.id).where(Schedule.id > after).order_by(Schedule.id).limit(limit)
    ids = session.scalars(following).all()
    if not ids:
        return None
    watched = select(AlertWatch.schedule_id).where(AlertWatch.schedule_id.between(ids[0], ids[-1]))
    _insert(session, sorted(set(ids).difference(session.scalars(watched))), due_at)
    return ids[-1]


def set_due(session: Session, *, schedule_id: int, due_at: datetime) -> None:
    """Insert the row of a locked schedule, or set when it is due."""
    _insert(session, [schedule_id], due_at)
    changed = update(AlertWatch).where(AlertWatch.schedule_id == schedule_id)
    execute_dml(session, changed.values(due_at=due_at))


def remove(session: Session, *, schedule_id: int) -> None:
    """Delete the row of a schedule, if it has one."""
    execute_dml(session, delete(AlertWatch).where(AlertWatch.schedule_id == schedule_id))


def _insert(session: Session, ids: Sequence[int], due_at: datetime) -> None:
    # The caller's session may choose its database by the mapped class.
    connection = session.connection(bind_arguments={"mapper": Schedule})
    rows = [{"schedule_id": schedule_id, "due_at": due_at} for schedule_id in ids]
    batches.insert_new(connection, ALERT_WATCHES, rows)
