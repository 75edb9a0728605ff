"""Queries on unsent alerts and on the messages about them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Row,
    and_,
    case,
    delete,
    exists,
    func,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from celery_dynbeat.common.alert_kinds import (
    NOTICE_TARGET,
    OWNERS,
    SEVERITIES,
    Severity,
    Unsent,
)
from celery_dynbeat.db import statements
from celery_dynbeat.db.alert_models import NO_SCHEDULE, Alert, AlertMessage
from celery_dynbeat.db.models import Run, Schedule
from celery_dynbeat.db.statements import in_index_order
from celery_dynbeat.store.runs import execute_dml

#: Alerts that one message counts.
MAX_TAKEN = 10_000
#: Unsent alerts of a target that are counted.
MAX_UNSENT = 10_000
#: Ids in one statement.
_IDS = 1_000
#: The number of messages that are read to find the next message. More wait only if many targets do
#: not answer.
_NEXT = 100
# A literal: PostgreSQL does not take two parameters for the same expression.
_IS_NOTICE = AlertMessage.target.like(literal_column(f"'{NOTICE_TARGET}%'"))


class Waiting(NamedTuple):
    """The unsent alerts of a target: since when the oldest waits.

    ``opened_since`` concerns alerts that opened. ``urgent_since`` concerns alerts with the severity
    "error". None means that there are no such alerts.
    """

    target: str
    since: datetime
    opened_since: datetime | None
    urgent_since: datetime | None


class Newest(NamedTuple):
    """The newest message of a target, and when it was written."""

    id: int
    at: datetime


@in_index_order
def waiting(session: Session) -> Sequence[Waiting]:
    """Return the targets with unsent alerts.

    Reads two entries of an index for each target that any alert has, and the recoveries and
    warnings that wait for longer than an error. They are two statements or more: MariaDB reads the
    whole index for a recursive query.
    """
    found, target = [], _next_target(session, "")
    while target is not None:
        oldest = _oldest(session, target)
        if oldest is not None:
            opened = oldest if oldest.unsent == Unsent.OPENED else _oldest(session, target, _OPENED)
            urgent = opened
            if opened is not None and opened.kind not in _ERRORS:
                urgent = _oldest(session, target, _URGENT)
            instants = [None if each is None else each.unsent_at for each in (opened, urgent)]
            found.append(Waiting(target, oldest.unsent_at, *instants))
        target = _next_target(session, target)
    return found


_ERRORS = [kind.value for kind, severity in SEVERITIES.items() if severity is Severity.ERROR]
_OPENED = Alert.unsent == Unsent.OPENED.value
_URGENT = and_(_OPENED, Alert.kind.in_(_ERRORS))


def _oldest(
    session: Session, target: str, condition: ColumnElement[bool] | None = None
) -> Row[Any] | None:
    oldest: Any = select(Alert.unsent_at, Alert.unsent, Alert.kind).where(Alert.target == target)
    oldest = oldest.where(Alert.unsent_at.is_not(None))
    if condition is not None:
        oldest = oldest.where(condition)
    # min() is not used, because MariaDB would read all unsent alerts of the target.
    row: Row[Any] | None = session.execute(
        oldest.order_by(Alert.unsent_at, Alert.id).limit(1)
    ).one_or_none()
    return row


def _next_target(session: Session, after: str) -> str | None:
    # min() would be slow, because without statistics, PostgreSQL would read the alerts of all later
    # targets.
    later = select(Alert.target).where(Alert.target > after)
    return session.scalar(later.order_by(Alert.target).limit(1))


@in_index_order
def newest(session: Session, *, target: str) -> Newest | None:
    """Return the newest message of a target."""
    return _newest(session, _newest_of(target))


@in_index_order
def newest_error(session: Session, *, target: str) -> Newest | None:
    """Return the newest message of a target with the severity "error"."""
    return _newest(session, _newest_of(target).where(AlertMessage.severity == Severity.ERROR.value))


@in_index_order
def lock_newest(session: Session, *, target: str) -> Newest | None:
    """Return the newest message of a target, locked so that no other beat deletes it."""
    return _newest(session, _newest_of(target).with_for_update())


def _newest_of(target: str) -> Any:
    messages = select(AlertMessage.id, AlertMessage.created_at)
    messages = messages.where(AlertMessage.target == target)
    found: Any = messages.order_by(AlertMessage.id.desc()).limit(1)
    return found


def _newest(session: Session, statement: Any) -> Newest | None:
    row = session.execute(statement).one_or_none()
    return None if row is None else Newest(*row)


@in_index_order
def lock_unsent(
    session: Session, *, target: str, now: datetime, damping: timedelta, only_urgent: bool
) -> Sequence[Row[Any]]:
    """Return up to MAX_TAKEN unsent alerts of a target, locked, the oldest first.

    Recoveries that have not lasted for ``damping`` are left out. ``only_urgent`` selects openings
    of errors.

    Alerts that another beat has locked are skipped. ``has_schedule`` is False if the schedule of an
    alert was deleted while a beat opened it.
    """
    exist = exists().where(Schedule.id == Alert.schedule_id)
    has_schedule = or_(Alert.schedule_id == NO_SCHEDULE, exist).label("has_schedule")
    statement: Any = (
        select(Alert.id, Alert.schedule_id, Alert.kind, Alert.unsent, has_schedule)
        .where(Alert.unsent_at.is_not(None), Alert.target == target)
        .where(_URGENT if only_urgent else or_(_OPENED, _has_lasted(now, damping)))
        .order_by(Alert.unsent_at, Alert.id)
        .limit(MAX_TAKEN)
        .with_for_update(skip_locked=True)
    )
    return session.execute(statement).all()


def _has_lasted(now: datetime, damping: timedelta) -> ColumnElement[bool]:
    # An instant after ``now`` means that the clock was set back.
    return or_(Alert.unsent_at <= now - damping, Alert.unsent_at > now)


def causes(session: Session, alert_ids: Sequence[int]) -> Mapping[int, Row[Any]]:
    """Return the tasks of the schedules of alerts, and their errors, by the ids of the alerts."""
    found: dict[int, Row[Any]] = {}
    for ids in statements.in_parts(alert_ids, _IDS):
        statement: Any = select(Alert.id, Schedule.task, Alert.detail)
        statement = statement.outerjoin(Schedule, Schedule.id == Alert.schedule_id)
        statement = statement.where(Alert.id.in_(ids))
        found |= {row.id: row for row in session.execute(statement)}
    return found


def open_kinds(session: Session, schedule_ids: Sequence[int]) -> Mapping[int, Sequence[str]]:
    """Return the kinds of the open alerts of schedules by their ids; none for the others."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    for ids in statements.in_parts(schedule_ids, _IDS):
        statement: Any = select(Alert.schedule_id, Alert.kind)
        statement = statement.where(Alert.schedule_id.in_(ids), Alert.checked_at.is_not(None))
        for schedule_id, kind in session.execute(statement):
            found[schedule_id].append(kind)
    return found


def examples(session: Session, alert_ids: Sequence[int]) -> Mapping[int, Row[Any]]:
    """Return alerts by their ids, with what their schedules and runs do now.

    ``Alert``, the ``task`` and ``next_run_at`` of the schedule, and of the run of the alert
    ``sent_at`` and ``started_at``.
    """
    statement: Any = (
        select(Alert, Schedule.task, Schedule.next_run_at, Run.sent_at, Run.started_at)
        .outerjoin(Schedule, Schedule.id == Alert.schedule_id)
        .outerjoin(Run, Run.id == Alert.run_id)
        .where(Alert.id.in_(alert_ids))
    )
    return {row.Alert.id: row for row in session.execute(statement)}


def mark_taken(session: Session, alert_ids: Sequence[int], *, message_id: int | None) -> None:
    """Note that a message reports these alerts. None means that their target has no URL."""
    for ids in statements.in_parts(alert_ids, _IDS):
        taken = update(Alert).where(Alert.id.in_(ids))
        execute_dml(session, taken.values(unsent=None, unsent_at=None, message_id=message_id))


def insert(session: Session, *, target: str, previous_id: int, at: datetime) -> AlertMessage:
    """Insert a message that reports nothing yet.

    Raises IntegrityError if another message of its target has the same ``previous_id``.
    """
    message = AlertMessage(
        target=target,
        previous_id=previous_id,
        severity=Severity.INFO,
        payload={},
        created_at=at,
        next_try_at=at,
    )
    session.add(message)
    session.flush()
    return message


def _is_due(now: datetime, without: Sequence[str]) -> ColumnElement[bool]:
    free = or_(AlertMessage.leased_until.is_(None), AlertMessage.leased_until <= now)
    return and_(AlertMessage.next_try_at <= now, free, AlertMessage.target.not_in(without))


def has_due(session: Session, *, now: datetime, without: Sequence[str], with_notices: bool) -> bool:
    """Return whether ``lease`` can assign a message. Locks nothing."""
    due = select(AlertMessage.id).where(_is_due(now, without))
    if not with_notices:
        due = due.where(~_IS_NOTICE)
    return session.scalar(due.order_by(AlertMessage.next_try_at).limit(1)) is not None


def count_due(session: Session, *, now: datetime, limit: int) -> int:
    """Return the number of messages that wait to be sent, up to ``limit``."""
    due = select(AlertMessage.id).where(AlertMessage.next_try_at <= now).limit(limit)
    return session.scalar(select(func.count()).select_from(due.subquery())) or 0


def count_unfinished_notices(session: Session, *, limit: int) -> int:
    """Return the number of messages to owners that are not ended, up to ``limit``.

    A message that is tried again later counts.
    """
    found = select(AlertMessage.id).where(AlertMessage.next_try_at.is_not(None), _IS_NOTICE)
    counted = select(func.count()).select_from(found.limit(limit).subquery())
    return session.scalar(counted) or 0


def lease(
    session: Session,
    *,
    now: datetime,
    node: str,
    until: datetime,
    without: Sequence[str],
    with_notices: bool,
) -> Mapping[str, Any] | None:
    """Assign the message that has been due the longest to ``node``; None if there is none.

    Until ``until`` no other beat tries it. Messages of the targets ``without`` are left. Messages
    to operators come first. If ``with_notices`` is false, only they are assigned.
    """
    # Errors are written before warnings and recoveries.
    oldest = select(AlertMessage).order_by(AlertMessage.next_try_at, AlertMessage.id).limit(1)
    oldest = oldest.where(_is_due(now, without)).with_for_update(skip_locked=True)
    row = session.scalars(oldest.where(~_IS_NOTICE)).one_or_none()
    if row is None and with_notices:
        row = session.scalars(oldest).one_or_none()
    if row is None:
        return None
    row.leased_by, row.leased_until, row.attempts = node, until, row.attempts + 1
    session.flush()
    return {column.key: getattr(row, column.key) for column in AlertMessage.__table__.columns}


def next_try_at(session: Session) -> datetime | None:
    """Return when the next message can be leased, or None if all messages have ended."""
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


def old_messages(session: Session, *, before: datetime, limit: int) -> Sequence[int]:
    """Return up to ``limit`` ids of messages that were written before ``before`` and have ended."""
    old = select(AlertMessage.id).where(
        AlertMessage.created_at < before, AlertMessage.next_try_at.is_(None)
    )
    return session.scalars(old.order_by(AlertMessage.id).limit(limit)).all()


def delete_messages(session: Session, ids: Sequence[int]) -> None:
    """Delete messages."""
    execute_dml(session, delete(AlertMessage).where(AlertMessage.id.in_(ids)))


def counts(session: Session) -> Mapping[str, Row[Any]]:
    """Return, by target, the number of its messages in each state. Reads all messages.

    All notices to owners have the name OWNERS.
    """
    message = AlertMessage
    waits = message.next_try_at.is_not(None)
    states = {
        "waiting": waits,
        "failing": and_(waits, message.error.is_not(None)),
        "sent": message.sent_at.is_not(None),
        "dropped": message.dropped_at.is_not(None),
    }
    numbers = [func.count(case((state, 1))).label(name) for name, state in states.items()]
    name = case((_IS_NOTICE, literal_column(f"'{OWNERS}'")), else_=message.target)
    statement: Any = select(
        name.label("name"),
        *numbers,
        func.max(message.sent_at).label("last_sent_at"),
        func.min(message.next_try_at).label("next_try_at"),
        func.max(case((message.error.is_not(None), message.id))).label("failed_id"),
    )
    return {row.name: row for row in session.execute(statement.group_by("name"))}


def errors(session: Session, message_ids: Sequence[int]) -> Mapping[int, str]:
    """Return the errors of messages by their ids."""
    failed = select(AlertMessage.id, AlertMessage.error).where(AlertMessage.id.in_(message_ids))
    return {row.id: row.error for row in session.execute(failed)}


def count_unsent(session: Session, *, target: str) -> int:
    """Return the number of alerts of a target that no message reports yet, up to MAX_UNSENT."""
    unsent = select(Alert.id).where(Alert.target == target, Alert.unsent_at.is_not(None))
    counted = select(func.count()).select_from(unsent.limit(MAX_UNSENT).subquery())
    return session.scalar(counted) or 0
