"""Queries on ``failing_since``: since when the ended runs of a schedule fail.

A schedule is failing if its last ended run failed or was lost. A run that a shutdown interrupted
does not count. The last is the one with the latest
``finished_at``, so outcomes that are written late do not count as newer than they are. Runs of any
origin count. An edit does not change it.

The column is written after the end of the run is committed, because a schedule is locked before its
runs:

    failed                                    the worker, at once
    succeeded, and the schedule is failing    beat, at its next poll
    lost, or not publishable                  beat, in the same pass

Where beat corrects the schedule, the UPDATE that ends the run also sets its ``retry_at``
(``deferred``). A worker therefore executes no additional statement for a run that succeeds, and
neither a rescue nor a heartbeat locks a schedule. No process waits for a schedule that an
application has locked: the end then also gets a ``retry_at``. If the process dies after the end of
a failed run, the next failed run corrects the column.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import ScalarSelect, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from celery_dynbeat.common.states import Status
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.models import RUNS, Run, Schedule
from celery_dynbeat.db.statements import RowLockedError, read
from celery_dynbeat.store.runs import execute_dml, is_not_interrupted, update_free
from celery_dynbeat.store.schedules import check_deleted
from celery_dynbeat.telemetry import emit, events, has_listeners

#: The statuses that decide whether a schedule is failing.
OUTCOMES = (Status.SUCCEEDED, Status.FAILED, Status.LOST)
#: Ended runs whose schedules one call corrects, in one transaction that locks the schedules.
MAX_DEFERRED = 20
#: Rows of the history that a refresh reads.
MAX_READ = 500
#: Status and ``finished_at`` of a run.
_End: TypeAlias = tuple[Status, datetime | None]
#: A poll searches for ended runs whose ``retry_at`` passed within this time. Retries that no worker
#: has started are in the same index, and there may be many. Maintenance searches through all.
RECENT = timedelta(minutes=1)


class DeferredEnd(NamedTuple):
    """An ended run whose schedule must be corrected."""

    id: str
    status: Status
    schedule_id: int | None
    owner: str
    name: str


def unaware_schedule_of(session: Session, *, run_id: str) -> int | None:
    """Return the id of the schedule of a run, or None if it is failing already, or was deleted."""
    statement = (
        select(Schedule.id)
        .join(Run, Run.schedule_id == Schedule.id)
        .where(Run.id == run_id, Schedule.failing_since.is_(None))
    )
    return session.scalar(statement)


class Recovered(NamedTuple):
    """A schedule of which a run succeeded, and since when its earlier runs had failed."""

    schedule_id: int
    owner: str
    name: str
    failing_since: datetime


class Refreshed(NamedTuple):
    """The schedules that recovered, and those that another transaction has locked.

    A later run of a recovered schedule may have failed again.
    """

    recovered: Sequence[Recovered]
    locked: set[int]


def _refresh_rows(session: Session, schedule_ids: Sequence[int]) -> Refreshed:
    """Set ``failing_since`` of schedules from their newest runs. Locks the schedules."""
    recovered: list[Recovered] = []
    locked: set[int] = set()
    for schedule_id in schedule_ids:
        try:
            recovered += _refresh_one(session, schedule_id)
        except RowLockedError:
            locked.add(schedule_id)
    return Refreshed(recovered, locked)


def _refresh_one(session: Session, schedule_id: int) -> Sequence[Recovered]:
    lock = select(Schedule.owner, Schedule.name, Schedule.failing_since)
    lock = lock.where(Schedule.id == schedule_id).with_for_update(skip_locked=True)
    row = session.execute(lock).one_or_none()
    if row is None:
        check_deleted(session, schedule_id=schedule_id)
        return ()
    before = row.failing_since
    since = _since(_newest(session, schedule_id), before=before)
    if since == before:
        return ()
    changed = update(Schedule).where(Schedule.id == schedule_id)
    execute_dml(session, changed.values(failing_since=since))
    if before is None or (since is not None and since < before):
        return ()
    return (Recovered(schedule_id, row.owner, row.name, before),)


def _newest(session: Session, schedule_id: int) -> Sequence[_End]:
    newest = select(Run.status, Run.finished_at).where(Run.schedule_id == schedule_id)
    newest = newest.where(is_not_interrupted(RUNS.c.status, RUNS.c.error))
    newest = newest.order_by(Run.fire_at.desc())
    return [(row.status, row.finished_at) for row in session.execute(newest.limit(MAX_READ))]


def _since(runs: Sequence[_End], *, before: datetime | None) -> datetime | None:
    """Return when the first of the last failures ended. ``before`` is the stored instant."""
    ends = [(at, status) for status, at in runs if status in OUTCOMES and at is not None]
    since = None
    for at, status in sorted(ends, key=itemgetter(0), reverse=True):
        if status == Status.SUCCEEDED:
            return since
        since = at
    # All runs that were read failed: the first failure may be older.
    return since if since is None or before is None else min(since, before)


def first_deferred_id(*, now: Any, since: Any) -> ScalarSelect[str]:
    """Return a query of an ended run whose schedule must be corrected now, by its ``retry_at``."""
    return (
        select(Run.id)
        .where(Run.retry_at > since, Run.retry_at <= now, Run.status.in_(OUTCOMES))
        .order_by(Run.retry_at)
        .limit(1)
        .scalar_subquery()
    )


def defer(session: Session, run_id: str, *, until: datetime) -> None:
    """Let beat correct the schedule of an ended run from ``until`` on.

    A run that another transaction has locked does not change.
    """
    ended = (Run.id == run_id, Run.status.in_(OUTCOMES))
    update_free(session, *ended, values={"retry_at": until})


def set_corrected(
    session: Session, ends: Sequence[DeferredEnd], *, until: datetime | None = None
) -> None:
    """Note that the schedules of ended runs are corrected; with ``until``, that they are not yet.

    A lost run whose worker has reported since it was read does not change: its new end needs a
    correction.
    """
    ids: defaultdict[Status, list[str]] = defaultdict(list)
    for end in ends:
        ids[end.status].append(end.id)
    for status, as_read in ids.items():
        free = (Run.id.in_(as_read), Run.status == status)
        update_free(session, *free, values={"retry_at": until})


def deferred(
    session: Session,
    *,
    now: datetime,
    limit: int,
    since: datetime | None = None,
    except_ids: Collection[str] = (),
) -> Sequence[DeferredEnd]:
    """Return up to ``limit`` ended runs whose schedules must be corrected.

    ``since`` limits the search to those whose ``retry_at`` is later (``RECENT``).

    Runs that another transaction has locked are left out: ``defer`` could not change them, and they
    would hide the others. The others are locked until the end of the transaction.
    """
    after = Run.retry_at.is_not(None) if since is None else Run.retry_at > since
    due = select(Run.id).where(after, Run.retry_at <= now, Run.status.in_(OUTCOMES))
    if except_ids:
        due = due.where(Run.id.not_in(except_ids))
    ids = session.scalars(
        due.order_by(Run.retry_at).limit(limit).with_for_update(skip_locked=True)
    ).all()
    statement: Any = select(Run.id, Run.status, Run.schedule_id, Run.owner, Run.name).where(
        Run.id.in_(ids)
    )
    return [DeferredEnd(*row) for row in read(session, statement)]


def note_failure(database: Database, *, run_id: str, at: datetime) -> None:
    """Correct ``failing_since`` of the schedule whose run has failed.

    Call it after the commit of the end. For a schedule that fails already, this is one read.
    """
    schedule_id = database.read(partial(unaware_schedule_of, run_id=run_id))
    if schedule_id is not None and _refresh(database, [schedule_id]).locked:
        # Beat tries again.
        database.run_autocommit(partial(defer, run_id=run_id, until=at))


class Settled(NamedTuple):
    """The number of ended runs whose schedules were corrected, or are tried again.

    ``refused`` are the runs whose change the database refuses.
    """

    corrected: int
    refused: Mapping[DeferredEnd, DBAPIError]


def settle_deferred(
    database: Database,
    *,
    now: datetime,
    retry_after: timedelta,
    since: datetime | None = None,
    except_ids: Collection[str] = (),
) -> Settled:
    """Correct the schedules of up to MAX_DEFERRED ended runs, except ``except_ids``.

    With ``since``, only ends that were deferred to a later instant count. A schedule that is still
    locked, or whose change the database refuses, is tried again after ``retry_after``.
    """
    read = partial(deferred, now=now, limit=MAX_DEFERRED, since=since, except_ids=except_ids)
    ends = database.read_in_transaction(read)
    # The schedule of a run may have been deleted.
    schedule_ids = {end.schedule_id for end in ends if end.schedule_id is not None}
    locked = _refresh(database, sorted(schedule_ids)).locked
    again = [end for end in ends if end.schedule_id in locked]
    done = [end for end in ends if end.schedule_id not in locked]
    until = now + retry_after
    _, refused = database.run_in_parts(partial(set_corrected, until=until), again)
    _, others = database.run_in_parts(set_corrected, done)
    refused |= others
    return Settled(len(ends) - len(refused), refused)


def _refresh(database: Database, schedule_ids: Sequence[int]) -> Refreshed:
    """Set ``failing_since`` of schedules from their history.

    A schedule whose change the database refuses counts as locked.
    """
    results, refused = database.run_in_parts(_refresh_rows, schedule_ids, in_transaction=True)
    refreshed = Refreshed(
        [each for result in results for each in result.recovered],
        {each for result in results for each in result.locked} | refused.keys(),
    )
    if has_listeners(events.ScheduleRecovered):
        for recovered in refreshed.recovered:
            emit(
                events.ScheduleRecovered(
                    schedule_id=recovered.schedule_id,
                    owner=recovered.owner,
                    schedule=recovered.name,
                    failing_since=recovered.failing_since,
                )
            )
    return refreshed
