"""Schedules and runs that beat should have sent, and runs that no worker has started."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import and_, case, func, not_, select
from sqlalchemy.orm import Session

from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run, Schedule
from celery_dynbeat.db.statements import force_index, in_index_order
from celery_dynbeat.store import runs
from celery_dynbeat.store.schedules.schedule_filters import (
    ScheduleFilter,
    in_state,
    is_everything_held,
)

#: Rows that are read.
MAX_READ = 10_000
_DUE_INDEX = "ix_dynbeat_schedule_due"
_OVERDUE_INDEX = "ix_dynbeat_run_overdue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """A number of late rows, whether there can be more, and the earliest of their instants."""

    count: int = 0
    is_more: bool = False
    oldest_at: datetime | None = None


@in_index_order
def overdue_schedules(session: Session, *, matching: ScheduleFilter) -> Late:
    """Return the overdue schedules that match. ``oldest_at`` is the earliest next_run_at."""
    if is_everything_held(session, matching):
        return Late()
    is_late = case((and_(*in_state(matching)), 1), else_=0).label("is_late")
    read: Any = force_index(select(Schedule.next_run_at, is_late), Schedule, _DUE_INDEX)
    first = (
        read.where(
            Schedule.next_run_at.is_not(None), Schedule.next_run_at < matching.overdue_before
        )
        .order_by(Schedule.next_run_at, Schedule.id)
        .limit(MAX_READ + 1)
        .subquery()
    )
    at = case((first.c.is_late == 1, first.c.next_run_at))
    row = session.execute(
        select(
            func.count(),
            func.sum(first.c.is_late),
            func.min(at, type_=Schedule.next_run_at.type),
        ).select_from(first)
    ).one()
    return Late(count=min(int(row[1] or 0), MAX_READ), is_more=row[0] > MAX_READ, oldest_at=row[2])


@in_index_order
def overdue_runs(session: Session, *, now: datetime) -> Late:
    """Return the overdue runs. ``oldest_at`` is the earliest overdue_at."""
    return _unstarted(session, Run.overdue_at, Run.overdue_at <= now)


@in_index_order
def unstarted_runs(session: Session) -> Late:
    """Return the runs that no worker has started, without those that wait in a batch.

    ``oldest_at`` is the earliest instant since which one of the MAX_READ runs that are overdue next
    could be sent.
    """
    # A run that has not started is in the index of overdue runs. So is one that waits for a retry.
    since = func.coalesce(Run.ready_at, Run.created_at)
    return _unstarted(session, since, Run.status != Status.RETRYING, not_(runs.WAITS_IN_BATCH))


def _unstarted(session: Session, instant: Any, *conditions: Any) -> Late:
    read: Any = force_index(select(instant.label("at")), Run, _OVERDUE_INDEX)
    first = (
        read.where(Run.overdue_at.is_not(None), *conditions)
        .order_by(Run.overdue_at)
        .limit(MAX_READ + 1)
        .subquery()
    )
    count, oldest = session.execute(
        select(func.count(), func.min(first.c.at, type_=Run.created_at.type))
    ).one()
    return Late(count=min(count, MAX_READ), is_more=count > MAX_READ, oldest_at=oldest)
