"""Queries on the notices to owners, which are columns of the alerts of their schedules."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from celery_dynbeat.common.alert_kinds import NOTICE_KINDS, OwnerNotice
from celery_dynbeat.db.alert_models import ALERTS, Alert
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.db.statements import Row, in_index_order, read
from celery_dynbeat.store.alerts.checks import Window
from celery_dynbeat.store.alerts.messages import MAX_UNSENT
from celery_dynbeat.store.runs import execute_dml

#: Notices that are read to find the next owners.
WINDOW = 500
#: Alerts of an owner that one message reports.
MAX_ALERTS = 1_000
#: The instant of a notice and the id of its alert.
NoticeKey = tuple[datetime, int]
_ALERT = ALERTS.c
_STATE = (
    _ALERT.id,
    _ALERT.schedule_id,
    _ALERT.owner,
    _ALERT.kind,
    _ALERT.opened_at,
    _ALERT.recovered_at,
    _ALERT.owner_notice,
    _ALERT.owner_notice_at,
)


@in_index_order
def next_due(session: Session) -> datetime | None:
    """Return when the next notice can be sent, or None if no notice waits. Reads one row."""
    waiting = select(Alert.owner_notice_at).where(Alert.owner_notice_at.is_not(None))
    return session.scalar(waiting.order_by(Alert.owner_notice_at, Alert.id).limit(1))


@in_index_order
def due(session: Session, *, now: datetime, after: NoticeKey | None) -> Window:
    """Return owner, owner_notice_at and id of the notices that have been due the longest.

    With ``after``, the result has the notices that follow this key. Locks nothing.
    """
    columns = (_ALERT.owner_notice_at, _ALERT.id)
    statement = select(_ALERT.owner, *columns).where(columns[0] <= now)
    if after is not None:
        row_after = capabilities_of(session.get_bind().dialect).row_after
        statement = statement.where(row_after(columns, after))
    found = read(session, statement.order_by(*columns).limit(WINDOW))
    return Window(found, len(found) >= WINDOW)


@in_index_order
def lock_waiting(session: Session, *, owner: str, now: datetime) -> Sequence[Row]:
    """Return up to MAX_ALERTS alerts of ``owner`` with a notice to send, locked.

    Recoveries that have not lasted long enough are left out, as are alerts that another beat has
    locked.
    """
    is_opening = _ALERT.owner_notice == OwnerNotice.OPENED.value
    statement = (
        select(*_STATE)
        .where(_ALERT.owner == owner, _ALERT.owner_notice_at.is_not(None))
        .where(or_(is_opening, _ALERT.owner_notice_at <= now))
        .order_by(_ALERT.id)
        .limit(MAX_ALERTS)
        .with_for_update(skip_locked=True)
    )
    return read(session, statement)


@in_index_order
def others_of(session: Session, *, schedule_ids: Sequence[int]) -> Sequence[Row]:
    """Return the alerts of schedules that are open, or recovered and not reported."""
    kinds = [kind.value for kind in NOTICE_KINDS]
    statement = select(*_STATE).where(
        _ALERT.schedule_id.in_(schedule_ids),
        _ALERT.kind.in_(kinds),
        _ALERT.owner_notice.is_not(None),
    )
    return read(session, statement)


def schedules_of(session: Session, schedule_ids: Sequence[int]) -> Mapping[int, Any]:
    """Return the columns of schedules that a notice shows, by id. Deleted ones are left out."""
    columns = (Schedule.id, Schedule.owner, Schedule.name, Schedule.next_run_at)
    shown = select(*columns, Schedule.pause_after_failures).where(Schedule.id.in_(schedule_ids))
    return {row.id: row for row in session.execute(shown)}


@in_index_order
def postpone(session: Session, *, owner: str, until: datetime, now: datetime) -> None:
    """Let up to MAX_ALERTS due notices of an owner wait until an instant.

    Alerts that another transaction has locked are skipped.
    """
    found = select(_ALERT.id).where(_ALERT.owner == owner, _ALERT.owner_notice_at <= now)
    found = found.order_by(_ALERT.id).limit(MAX_ALERTS).with_for_update(skip_locked=True)
    ids = session.scalars(found).all()
    if ids:
        execute_dml(session, update(Alert).where(Alert.id.in_(ids)).values(owner_notice_at=until))


def count_waiting(session: Session) -> int:
    """Return the number of alerts with a notice to send, up to MAX_UNSENT."""
    waiting = select(Alert.id).where(Alert.owner_notice_at.is_not(None)).limit(MAX_UNSENT)
    return session.scalar(select(func.count()).select_from(waiting.subquery())) or 0
