"""Queries that give a schedule, its runs and what belongs to it to another owner."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, and_, delete, func, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from celery_dynbeat.common.errors import ScheduleExistsError
from celery_dynbeat.common.states import Status
from celery_dynbeat.db import statements
from celery_dynbeat.db.engine import savepoint
from celery_dynbeat.db.models import Request, Run, Schedule
from celery_dynbeat.db.statements import force_index, in_index_order, reading_latest
from celery_dynbeat.store.runs import (
    FIRE_TIME_INDEX,
    MAX_IN_LIST,
    UNFINISHED_INDEX,
    execute_dml,
)
from celery_dynbeat.store.schedules import lock


@in_index_order
def move_ended(
    session: Session, *, schedule_id: int, owner: str, to: str, after: datetime, limit: int
) -> datetime | None:
    """Give up to ``limit`` ended runs of ``owner`` to the owner ``to``, in the order of fire times.

    The first one is after the fire time ``after``. Return the last one; None if there are no more.
    """
    ended = Run.schedule_id == schedule_id, Run.scheduled_for > after, Run.finished_at.is_not(None)
    statement = select(Run.id, Run.scheduled_for).where(*ended, _is_of(owner))
    statement = force_index(statement, Run, FIRE_TIME_INDEX).order_by(Run.scheduled_for)
    rows = session.execute(reading_latest(session, statement.limit(limit))).all()
    _move_runs(session, [row.id for row in rows], owner=owner, to=to)
    return rows[-1].scheduled_for if len(rows) == limit else None


def _is_of(owner: str) -> ColumnElement[bool]:
    # Not the column alone: with it, PostgreSQL may read the index of the owner.
    return func.coalesce(Run.owner, "") == owner


def _move_runs(session: Session, ids: Sequence[str], *, owner: str, to: str) -> None:
    for part in statements.in_parts(ids, MAX_IN_LIST):
        of_owner = Run.id.in_(part), Run.owner == owner
        execute_dml(session, update(Run).where(*of_owner).values(owner=to))


@in_index_order
def has_runs(session: Session, *, schedule_id: int, owner: str) -> bool:
    """Return whether a schedule has runs that belong to ``owner``. It can read all of its runs."""
    found = select(Run.id).where(Run.schedule_id == schedule_id, _is_of(owner)).limit(1)
    return session.scalar(force_index(found, Run, FIRE_TIME_INDEX)) is not None


def move(session: Session, row: Schedule, *, to: str, now: datetime, notifies: bool) -> None:
    """Give a locked row, its unfinished runs, requests, slots and alerts to the owner ``to``.

    The application itself has no limit, so its runs have no slots: those that wait are sent.
    ``notifies`` is true if owners get notices about alerts. Raises ScheduleExistsError if that
    owner has the name.
    """
    name, owner, schedule_id = row.name, row.owner, row.id
    try:
        with savepoint(session):
            row.owner = to
            session.flush()
    except IntegrityError as error:
        # A locking read: the caller's snapshot may be older than the existing row.
        if lock(session, owner=to, name=name) is None:
            raise
        raise ScheduleExistsError(owner=to, name=name) from error
    requests = update(Request).where(Request.schedule_id == schedule_id).values(owner=to)
    execute_dml(session, requests)
    _move_alerts(session, schedule_id, to=to, now=now, notifies=notifies)
    unfinished = select(Run.id).where(Run.schedule_id == schedule_id, Run.finished_at.is_(None))
    unfinished = force_index(unfinished.where(_is_of(owner)), Run, UNFINISHED_INDEX)
    ids = session.scalars(reading_latest(session, unfinished)).all()
    _move_runs(session, ids, owner=owner, to=to)
    for part in statements.in_parts(ids, MAX_IN_LIST):
        _move_slots(session, part, to=to, now=now)


def _move_alerts(
    session: Session, schedule_id: int, *, to: str, now: datetime, notifies: bool
) -> None:
    """Give the alerts of a schedule to ``to``, which has got no notice about them.

    An open alert is reported to ``to``, also if the old owner is the application itself, which gets
    no notices. An alert that has recovered is not reported, unless its opening was not reported to
    the old owner.
    """
    # A late import, here and below: most processes that move a schedule have no alerts or slots.
    from celery_dynbeat.common.alert_kinds import NOTICE_KINDS, OwnerNotice  # noqa: PLC0415
    from celery_dynbeat.db.alert_models import Alert  # noqa: PLC0415

    no_notice = {"owner_notice": None, "owner_notice_at": None}
    of_schedule = update(Alert).where(Alert.schedule_id == schedule_id)
    execute_dml(session, of_schedule.values({"owner": to} if to else {"owner": to, **no_notice}))
    if to:
        was_reported = Alert.owner_notice.in_([OwnerNotice.REPORTED, OwnerNotice.RECOVERED])
        ended = of_schedule.where(was_reported, Alert.recovered_at.is_not(None))
        execute_dml(session, ended.values(no_notice))
        was_silent = and_(Alert.owner_notice.is_(None), Alert.kind.in_(NOTICE_KINDS))
        is_new = or_(was_reported, was_silent) if notifies else was_reported
        is_open = of_schedule.where(is_new, Alert.recovered_at.is_(None))
        opened = {"owner_notice": OwnerNotice.OPENED.value, "owner_notice_at": now}
        execute_dml(session, is_open.values(opened))


def _move_slots(session: Session, run_ids: Sequence[str], *, to: str, now: datetime) -> None:
    from celery_dynbeat.db.slot_models import Slot  # noqa: PLC0415

    of_runs = Slot.run_id.in_(run_ids)
    if to:
        execute_dml(session, update(Slot).where(of_runs).values(owner=to))
        return
    waiting = session.scalars(select(Slot.run_id).where(of_runs, Slot.admitted_at.is_(None))).all()
    if waiting:
        waits = Run.status == Status.PENDING, Run.overdue_at.is_(None)
        execute_dml(session, update(Run).where(Run.id.in_(waiting), *waits).values(overdue_at=now))
    execute_dml(session, delete(Slot).where(of_runs))
