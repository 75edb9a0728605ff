"""Queries on alerts and on the state of their schedules, and the lists of alerts.

None of them locks a schedule: beat's claim would skip it. An alert therefore has no foreign key,
which an INSERT would check with a lock. The alert of a deleted schedule is deleted by ``delete``.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session

from celery_dynbeat.db import statements
from celery_dynbeat.db.alert_models import ALERTS, NO_SCHEDULE, Alert, AlertMessage
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import RUNS, SCHEDULES, Schedule
from celery_dynbeat.db.statements import Row, force_index, in_index_order, read
from celery_dynbeat.store.owners import is_of

_ALERT, _SCHEDULE = ALERTS.c, SCHEDULES.c
CHECKED_INDEX = "ix_dynbeat_alert_checked_at"
#: Characters of an error in an alert.
MAX_DETAIL = 200
#: Open, and about a schedule.
_OPEN = and_(_ALERT.checked_at.is_not(None), _ALERT.schedule_id != NO_SCHEDULE)
_STATE = (
    _ALERT.id,
    _ALERT.schedule_id,
    _ALERT.owner,
    _ALERT.kind,
    _ALERT.opened_at,
    _ALERT.last_at,
    _ALERT.fact_count,
    _ALERT.run_id,
    _ALERT.value,
    _ALERT.detail,
    _ALERT.recovered_at,
    _ALERT.unsent,
    _ALERT.unsent_at,
    _ALERT.snoozed_until,
    _ALERT.owner_notice,
    _ALERT.owner_notice_at,
)


def _start(column: Any) -> Any:
    return func.substr(column, 1, MAX_DETAIL, type_=column.type).label(column.name)


_SUBJECT: tuple[Any, ...] = (
    _SCHEDULE.id,
    _SCHEDULE.owner,
    _SCHEDULE.name,
    _SCHEDULE.task,
    _SCHEDULE.enabled,
    _start(_SCHEDULE.error),
    _start(_SCHEDULE.paused_reason),
    _SCHEDULE.failing_since,
    _SCHEDULE.next_run_at,
    _SCHEDULE.jitter,
    _SCHEDULE.quiet_hours,
    _SCHEDULE.start_at,
    _SCHEDULE.created_at,
    _SCHEDULE.updated_at,
    _SCHEDULE.alerts,
)


@in_index_order
def subjects(session: Session, schedule_ids: Sequence[int]) -> Mapping[int, Row]:
    """Return the columns of these schedules that an alert needs, without locks.

    Deleted ones are left out.
    """
    statement = force_index(select(*_SUBJECT), SCHEDULES, "PRIMARY")
    found = read(session, statement.where(_SCHEDULE.id.in_(schedule_ids)))
    return {row.id: row for row in found}


@in_index_order
def lock_of(session: Session, schedule_ids: Sequence[int]) -> Sequence[Row]:
    """Return the alerts of these schedules, locked in the order of their key.

    Alerts that another transaction has locked are left out.
    """
    statement = select(*_STATE).where(_ALERT.schedule_id.in_(schedule_ids))
    statement = statement.order_by(_ALERT.schedule_id, _ALERT.kind)
    return read(session, statement.with_for_update(skip_locked=True))


@in_index_order
def with_locked(session: Session, schedule_ids: Sequence[int]) -> set[int]:
    """Return which of the schedules have an alert that another transaction has locked.

    For example, a call that deletes a schedule locks its alerts. The other alerts are locked for
    this transaction.
    """
    found = select(_ALERT.id, _ALERT.schedule_id).where(_ALERT.schedule_id.in_(schedule_ids))
    order = (_ALERT.schedule_id, _ALERT.kind)
    free = set(session.scalars(found.order_by(*order).with_for_update(skip_locked=True)))
    return {row.schedule_id for row in session.execute(found) if row.id not in free}


@in_index_order
def lock_open(session: Session, *, checked_before: datetime, limit: int) -> Sequence[Row]:
    """Return open alerts of schedules whose last check is the oldest, locked.

    Alerts that another beat checks are skipped.
    """
    order = (_ALERT.checked_at, _ALERT.id)
    statement = force_index(select(*_STATE), ALERTS, CHECKED_INDEX)
    statement = statement.where(_OPEN, order[0] <= checked_before)
    statement = statement.order_by(*order).limit(limit).with_for_update(skip_locked=True)
    return read(session, statement)


@in_index_order
def is_any_open_of(session: Session, schedule_id: int) -> bool:
    """Return whether a schedule has an open alert."""
    statement = select(_ALERT.id).where(_ALERT.schedule_id == schedule_id)
    return session.scalar(statement.where(_ALERT.checked_at.is_not(None)).limit(1)) is not None


@in_index_order
def oldest_check(session: Session) -> datetime | None:
    """Return the oldest check of the open alerts of schedules, or None if no such alert is open.

    Reads one row, and the rows of the alerts about nodes.
    """
    oldest = force_index(select(_ALERT.checked_at), ALERTS, CHECKED_INDEX)
    oldest = oldest.where(_OPEN).order_by(_ALERT.checked_at, _ALERT.id)
    found: datetime | None = session.scalar(oldest.limit(1))
    return found


def errors_of(session: Session, run_ids: Sequence[str]) -> Mapping[str, str]:
    """Return the beginning of the error of each run by its id. Runs without errors are left out."""
    if not run_ids:
        return {}
    run = RUNS.c
    statement = select(run.id, _start(run.error)).where(run.id.in_(run_ids), run.error.is_not(None))
    return {row.id: row.error for row in session.execute(statement)}


def insert(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert alerts that all have the same columns. Raises IntegrityError if one exists."""
    if rows:
        statements.insert(session.connection(bind_arguments={"mapper": Schedule}), ALERTS, rows)


def update(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    """Update locked alerts by ``id``. All rows have the same columns."""
    if rows:
        statements.update_each(
            session.connection(bind_arguments={"mapper": Schedule}), ALERTS, rows
        )


def follow_owners(session: Session, rows: Sequence[Row], owners: Mapping[int, str]) -> set[int]:
    """Give locked alerts to the owners of their schedules; return the ids of those that changed.

    ``owners`` are the present owners by the id of the schedule. An alert that opens while its
    schedule moves gets the earlier owner, because beat does not wait for the move. The application
    (owner "") gets no notices.
    """
    moved = [(row, owners.get(row.schedule_id, row.owner)) for row in rows]
    changes = [
        {
            "id": row.id,
            "owner": owner,
            "owner_notice": row.owner_notice if owner else None,
            "owner_notice_at": row.owner_notice_at if owner else None,
        }
        for row, owner in moved
        if owner != row.owner
    ]
    update(session, changes)
    return {change["id"] for change in changes}


def delete(session: Session, ids: Sequence[int]) -> None:
    """Delete locked alerts."""
    if ids:
        connection = session.connection(bind_arguments={"mapper": Schedule})
        capabilities_of(connection.dialect).delete(connection, ALERTS, ids)


#: An alert, and what its last message became.
_WITH_MESSAGE: Any = (
    Alert,
    *(AlertMessage.created_at, AlertMessage.next_try_at, AlertMessage.error),
    *(AlertMessage.sent_at, AlertMessage.dropped_at),
)
RECOVERED_INDEX = "ix_dynbeat_alert_recovered_at"
OPEN_INDEX = "ix_dynbeat_alert_owner_open"
OWNER_INDEX = "ix_dynbeat_alert_owner"


def _alerts() -> Any:
    return select(*_WITH_MESSAGE).outerjoin(AlertMessage, AlertMessage.id == Alert.message_id)


def page(
    session: Session, *, owner: str | None, only_open: bool, after: int, limit: int
) -> Sequence[Row]:
    """Return up to ``limit`` alerts with an id above ``after``, in the order of their ids.

    ``owner`` is not a group. None means all owners. Each row has the ``Alert`` and columns of its
    last message.
    """
    statement = _alerts().where(Alert.id > after)
    if owner is not None:
        statement = statement.where(Alert.owner == owner)
    if only_open and owner is not None:
        # Not ordered by checked_at, because the index has the rows of this condition in the order
        # of their ids.
        statement = force_index(statement, Alert, OPEN_INDEX).where(Alert.recovered_at.is_(None))
    elif only_open:
        statement = statement.where(Alert.checked_at.is_not(None))
    elif owner is not None:
        statement = force_index(statement, Alert, OWNER_INDEX)
    rows: Sequence[Row] = session.execute(statement.order_by(Alert.id).limit(limit)).all()
    return rows


@in_index_order
def some_open(session: Session, *, limit: int) -> Sequence[Row]:
    """Return up to ``limit`` open alerts of all owners as ``page`` does, in any order."""
    statement = force_index(_alerts(), Alert, CHECKED_INDEX).where(Alert.checked_at.is_not(None))
    return session.execute(statement.order_by(Alert.checked_at, Alert.id).limit(limit)).all()


@in_index_order
def newest_recovered(session: Session, *, limit: int) -> Sequence[Row]:
    """Return the ``limit`` alerts of all owners that recovered last, as ``page`` does."""
    statement = force_index(_alerts(), Alert, RECOVERED_INDEX)
    statement = statement.where(Alert.recovered_at.is_not(None))
    order = (Alert.recovered_at.desc(), Alert.id.desc())
    return session.execute(statement.order_by(*order).limit(limit)).all()


def lock_one(session: Session, *, owner: str | None, alert_id: int) -> Alert | None:
    """Return an open alert, locked, or None. With ``owner``, it belongs to this owner or group."""
    statement: Any = select(Alert).where(Alert.id == alert_id, Alert.checked_at.is_not(None))
    if owner is not None:
        statement = statement.where(is_of(Alert.owner, owner))
    statement = statement.with_for_update().execution_options(populate_existing=True)
    alert: Alert | None = session.scalars(statement).one_or_none()
    return alert


def get(session: Session, *, alert_id: int) -> Row:
    """Return an alert that exists, as ``page`` does."""
    row: Row = session.execute(_alerts().where(Alert.id == alert_id)).one()
    return row
