"""Queries that give a schedule, its runs and what belongs to it to another owner."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from celery_dynbeat.common.errors import ScheduleExistsError
from celery_dynbeat.common.states import Status
from celery_dynbeat.common.text import EARLIEST
from celery_dynbeat.db import statements
from celery_dynbeat.db.engine import savepoint
from celery_dynbeat.db.models import Request, Run, Schedule
from celery_dynbeat.db.statements import force_index, in_index_order
from celery_dynbeat.store.runs import FIRE_TIME_INDEX, MAX_IN_LIST, execute_dml
from celery_dynbeat.store.schedules import lock


class Moved(NamedTuple):
    """The runs of a batch, and the fire time after which the next batch starts, if there is one."""

    ids: Sequence[str]
    last: datetime | None


@in_index_order
def move_runs(
    session: Session, *, schedule_id: int, to: str, after: datetime, limit: int, only_ended: bool
) -> Moved:
    """Give up to ``limit`` runs after the fire time ``after`` to the owner ``to``, by fire time.

    Runs that this owner has are passed over.
    """
    statement = select(Run.id, Run.scheduled_for).where(
        Run.schedule_id == schedule_id, Run.scheduled_for > after, Run.owner != to
    )
    if only_ended:
        statement = statement.where(Run.finished_at.is_not(None))
    statement = force_index(statement, Run, FIRE_TIME_INDEX).order_by(Run.scheduled_for)
    rows = session.execute(statement.limit(limit)).all()
    ids = [row.id for row in rows]
    for part in statements.in_parts(ids, MAX_IN_LIST):
        execute_dml(session, update(Run).where(Run.id.in_(part)).values(owner=to))
    return Moved(ids, rows[-1].scheduled_for if len(rows) == limit else None)


def move(session: Session, row: Schedule, *, to: str, now: datetime) -> None:
    """Give a locked row, its other runs, requests, slots and alerts to the owner ``to``.

    The application itself has no limit, so its runs have no slots: those that wait are sent.
    Raises ScheduleExistsError if that owner has the name.
    """
    name, schedule_id = row.name, row.id
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
    # A late import, here and below: most processes that move a schedule have no alerts or slots.
    from celery_dynbeat.db.alert_models import Alert  # noqa: PLC0415

    execute_dml(session, update(Alert).where(Alert.schedule_id == schedule_id).values(owner=to))
    # All of the history, because a run with any fire time can have ended since the batches.
    after: datetime | None = EARLIEST
    while after is not None:
        moved = move_runs(
            session,
            schedule_id=schedule_id,
            to=to,
            after=after,
            limit=MAX_IN_LIST,
            only_ended=False,
        )
        if moved.ids:
            _move_slots(session, moved.ids, to=to, now=now)
        after = moved.last


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
