"""Queries on ``failing_since``: since when the ended runs of a schedule fail.

A schedule is failing if its last ended run failed or was lost. The last is the one with the latest
``finished_at``, so outcomes that are written late do not count as newer than they are. Runs of any
origin count. An edit does not change it.

The column is written after the end of the run is committed, because a schedule is locked before its
runs. If the process dies in between, the next end of a run corrects the column. A healthy schedule
whose run succeeds is only read, without a lock: beat's claim would skip a locked row.

No process waits for a schedule that an application has locked. Then the ended run gets a
``retry_at``, and the maintenance of beat corrects its schedule (``deferred``). Runs that are lost
or cannot be published always get one: neither rescue nor a heartbeat locks a schedule for them.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from celery_dynbeat.common.run_states import Status
from celery_dynbeat.db.index_order import force_index, in_index_order
from celery_dynbeat.db.models import Run, Schedule
from celery_dynbeat.store.rows import LockedRows, read
from celery_dynbeat.store.runs import FIRE_TIME_INDEX, execute_dml, update_free
from celery_dynbeat.store.schedules import check_deleted

#: The statuses that decide whether a schedule is failing.
OUTCOMES = (Status.SUCCEEDED, Status.FAILED, Status.LOST)
#: Rows of the history that a refresh reads.
MAX_READ = 500


def outdated_schedule(session: Session, *, run_id: str, failed: bool) -> int | None:
    """Return the schedule of an ended run if its ``failing_since`` contradicts the run, or None."""
    since = Schedule.failing_since
    statement = (
        select(Schedule.id)
        .join(Run, Run.schedule_id == Schedule.id)
        .where(Run.id == run_id, since.is_(None) if failed else since.is_not(None))
    )
    return session.scalar(statement)


class Recovered(NamedTuple):
    """A schedule whose last ended run succeeded, and since when its runs had failed."""

    owner: str
    name: str
    failing_since: datetime


@in_index_order
def refresh(session: Session, *, schedule_id: int) -> Recovered | None:
    """Set ``failing_since`` of a schedule from its newest runs. Locks the schedule.

    Return the schedule if it is no longer failing because of this call. Raises RowLockedError if
    another transaction has locked it.
    """
    lock = select(Schedule.owner, Schedule.name, Schedule.failing_since)
    lock = lock.where(Schedule.id == schedule_id).with_for_update(skip_locked=True)
    row = session.execute(lock).one_or_none()
    if row is None:
        check_deleted(session, schedule_id=schedule_id)
        return None
    since = _since(_newest(session, schedule_id), before=row.failing_since)
    if since == row.failing_since:
        return None
    changed = update(Schedule).where(Schedule.id == schedule_id)
    execute_dml(session, changed.values(failing_since=since))
    if since is not None or row.failing_since is None:
        return None
    return Recovered(row.owner, row.name, row.failing_since)


def _newest(session: Session, schedule_id: int) -> Sequence[Any]:
    newest: Any = select(Run.status, Run.finished_at).where(Run.schedule_id == schedule_id)
    newest = force_index(newest, Run, FIRE_TIME_INDEX).order_by(Run.scheduled_for.desc())
    return session.execute(newest.limit(MAX_READ)).all()


def _since(runs: Sequence[Any], *, before: datetime | None) -> datetime | None:
    """Return when the first of the last failures ended. ``before`` is the stored instant."""
    ends = [run for run in runs if run.status in OUTCOMES and run.finished_at is not None]
    since = None
    for end in sorted(ends, key=lambda run: run.finished_at, reverse=True):
        if end.status == Status.SUCCEEDED:
            return since
        since = end.finished_at
    # All runs that were read failed: the first failure may be older.
    return since if since is None or before is None else min(since, before)


def defer(session: Session, run_ids: Sequence[str], *, until: datetime | None) -> None:
    """Let maintenance correct the schedules of ended runs from ``until`` on; None: no more.

    A run that another transaction has locked does not change.
    """
    if run_ids:
        ended = (Run.id.in_(run_ids), Run.status.in_(OUTCOMES))
        update_free(session, *ended, values={"retry_at": until})


@in_index_order
def deferred(session: Session, *, now: datetime, limit: int) -> LockedRows:
    """Return up to ``limit`` ended runs whose schedules must be corrected.

    Runs that another transaction has locked are left out: ``defer`` could not change them, and they
    would hide the others. The others are locked until the end of the transaction.
    """
    due = select(Run.id).where(
        Run.retry_at.is_not(None), Run.retry_at <= now, Run.status.in_(OUTCOMES)
    )
    ids = session.scalars(
        due.order_by(Run.retry_at).limit(limit).with_for_update(skip_locked=True)
    ).all()
    statement: Any = (
        select(Run.id, Run.schedule_id, Run.owner, Run.name, Schedule.pause_after_failures)
        .outerjoin(Schedule, Schedule.id == Run.schedule_id)
        .where(Run.id.in_(ids))
    )
    return read(session, statement, key=Run.id)
