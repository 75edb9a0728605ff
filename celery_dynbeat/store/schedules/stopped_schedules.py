"""Schedules that fail, and holds, for the health check. Each query is bounded."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Select, func, or_, select
from sqlalchemy.orm import Session

from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import HOLDS, Hold, Run, Schedule
from celery_dynbeat.db.statements import force_index
from celery_dynbeat.store import holds
from celery_dynbeat.store.runs import FIRE_TIME_INDEX

#: Rows of failing schedules that are read. Finished schedules are not counted.
MAX_FAILING_READ = 10_000
#: Rows of the history of a schedule in which its last error is searched.
MAX_HISTORY_READ = 100


class FailingSchedule(NamedTuple):
    """A schedule that fires again, and whose last runs failed or were lost.

    ``since`` is when the first of these runs ended. ``error`` is the error of the last one, or
    None.
    """

    owner: str
    name: str
    since: datetime
    error: str | None


class HoldInForce(NamedTuple):
    """A hold. ``owner=None`` means all schedules, and ``until=None`` means until its release."""

    owner: str | None
    actor: str
    reason: str
    since: datetime
    until: datetime | None


def failing_statement(*, limit: int) -> Select[Any]:
    """Return the SELECT of the failing schedules that fire again, in any order."""
    failing = (
        select(
            Schedule.id,
            Schedule.owner,
            Schedule.name,
            Schedule.failing_since,
            Schedule.next_run_at,
        )
        .where(Schedule.failing_since.is_not(None))
        .limit(MAX_FAILING_READ)
        .subquery()
    )
    return select(failing).where(failing.c.next_run_at.is_not(None)).limit(limit)


def last_error(session: Session, *, schedule_id: int, length: int) -> str | None:
    """Return the first characters of the error of the last failed or lost run."""
    newest = (
        force_index(select(Run.status, Run.error, Run.scheduled_for), Run, FIRE_TIME_INDEX)
        .where(Run.schedule_id == schedule_id)
        .order_by(Run.scheduled_for.desc())
        .limit(MAX_HISTORY_READ)
        .subquery()
    )
    statement = (
        select(func.substr(newest.c.error, 1, length))
        .where(newest.c.status.in_((Status.FAILED, Status.LOST)))
        .order_by(newest.c.scheduled_for.desc())
        .limit(1)
    )
    error: str | None = session.scalar(statement)
    return error


def hold_of_everything_statement(*, now: datetime) -> Select[Any]:
    """Return the SELECT of the hold of everything, if it is in force."""
    return force_index(_holds(now), Hold, holds.EVERYTHING_INDEX).where(HOLDS.c.everything)


def holds_of_owners_statement(*, now: datetime, limit: int) -> Select[Any]:
    """Return the SELECT of the holds of owners that are in force, the oldest first."""
    # Maintenance deletes holds that have ended, so few rows do not match.
    of_owners = force_index(_holds(now), Hold, "PRIMARY").where(Hold.owner.is_not(None))
    return of_owners.order_by(Hold.id).limit(limit)


def _holds(now: datetime) -> Select[Any]:
    columns: Any = (Hold.owner, Hold.actor, Hold.reason, Hold.created_at, Hold.until_at)
    return select(*columns).where(or_(Hold.until_at.is_(None), Hold.until_at > now))


def read_failing(
    session: Session, *, limit: int, named: int, length: int
) -> tuple[int, Sequence[FailingSchedule]]:
    """Return the number of failing schedules up to ``limit``, and the first ``named``."""
    rows = session.execute(failing_statement(limit=limit)).all()
    first = sorted(rows, key=lambda row: (row.owner, row.name))[:named]
    return len(rows), [
        FailingSchedule(
            row.owner,
            row.name,
            row.failing_since,
            last_error(session, schedule_id=row.id, length=length),
        )
        for row in first
    ]


def read_holds(
    session: Session, *, now: datetime, limit: int, named: int
) -> tuple[int, Sequence[HoldInForce]]:
    """Return the number of holds up to ``limit``, and the first ``named``.

    The hold of everything comes first.
    """
    rows = [
        *session.execute(hold_of_everything_statement(now=now)),
        *session.execute(holds_of_owners_statement(now=now, limit=limit)),
    ]
    return len(rows), [HoldInForce(*row) for row in rows[:named]]
