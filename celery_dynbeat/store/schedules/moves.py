"""Queries that give a schedule, its runs and what belongs to it to another owner."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from celery_dynbeat.common.errors import ScheduleExistsError
from celery_dynbeat.common.text import EARLIEST
from celery_dynbeat.db import statements
from celery_dynbeat.db.engine import savepoint
from celery_dynbeat.db.models import Request, Run, Schedule
from celery_dynbeat.db.statements import force_index, in_index_order
from celery_dynbeat.store.runs import FIRE_TIME_INDEX, MAX_IN_LIST, execute_dml
from celery_dynbeat.store.schedules import lock

#: Rows of history that one query of the last step reads.
_READ_AT_ONCE = 10_000


class Moved(NamedTuple):
    """How many runs a batch moved, and the fire time after which the next batch starts."""

    number: int
    last: datetime | None


@in_index_order
def move_ended_runs(
    session: Session, *, schedule_id: int, to: str, after: datetime, limit: int
) -> Moved:
    """Give up to ``limit`` ended runs after the fire time ``after`` to the owner ``to``.

    The runs are read by fire time. ``last`` None: there are no more.
    """
    statement = select(Run.id, Run.scheduled_for).where(
        Run.schedule_id == schedule_id,
        Run.scheduled_for > after,
        Run.finished_at.is_not(None),
        Run.owner != to,
    )
    statement = force_index(statement, Run, FIRE_TIME_INDEX).order_by(Run.scheduled_for)
    rows = session.execute(statement.limit(limit)).all()
    _set_owner(session, [row.id for row in rows], to=to)
    return Moved(len(rows), rows[-1].scheduled_for if len(rows) == limit else None)


def move(session: Session, row: Schedule, *, to: str) -> None:
    """Give a locked row, its other runs, requests, slots and alerts to the owner ``to``.

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
    ids = _runs_of_others(session, schedule_id=schedule_id, to=to)
    _set_owner(session, ids, to=to)
    requests = update(Request).where(Request.schedule_id == schedule_id).values(owner=to)
    execute_dml(session, requests)
    # Late imports: most processes that move a schedule have neither.
    from celery_dynbeat.db.alert_models import Alert  # noqa: PLC0415
    from celery_dynbeat.db.slot_models import Slot  # noqa: PLC0415

    execute_dml(session, update(Alert).where(Alert.schedule_id == schedule_id).values(owner=to))
    for part in statements.in_parts(ids, MAX_IN_LIST):
        execute_dml(session, update(Slot).where(Slot.run_id.in_(part)).values(owner=to))


@in_index_order
def _runs_of_others(session: Session, *, schedule_id: int, to: str) -> Sequence[str]:
    """Return the ids of the runs of a schedule that ``to`` does not own.

    Reads the whole history of the schedule, because a run with any fire time can have ended since
    the batches.
    """
    found: list[str] = []
    after = EARLIEST
    statement = force_index(
        select(Run.id, Run.scheduled_for, Run.owner), Run, FIRE_TIME_INDEX
    ).where(Run.schedule_id == schedule_id)
    statement = statement.order_by(Run.scheduled_for).limit(_READ_AT_ONCE)
    while rows := session.execute(statement.where(Run.scheduled_for > after)).all():
        found += [row.id for row in rows if row.owner != to]
        after = rows[-1].scheduled_for
    return found


def _set_owner(session: Session, ids: Sequence[str], *, to: str) -> None:
    for part in statements.in_parts(ids, MAX_IN_LIST):
        execute_dml(session, update(Run).where(Run.id.in_(part)).values(owner=to))
