"""Run ended runs again: one batch of one request in each transaction.

    due request -> capacity? -> waiting runs, and the next matching runs -> record reruns -> publish
                   none: due again after the poll interval

- At most ``batch_size`` reruns of a request are unfinished, so that they do not flood the queue. A
  rerun counts as unfinished until it ends or has run for dynbeat_max_run_time.
- If the overlap policy of a schedule is not ``allow``, one rerun is made at a time, and only while
  the schedule has no unfinished run. Until then the run waits. Runs of other schedules do not.
- Left out are runs that no longer match, that have a newer rerun, or whose schedule is deleted,
  paused or quarantined or must not run its task.
- During a hold of everything or of the request's owner, nothing is made. The runs of another held
  owner wait.
- The schedules are locked, so that no two transactions make a rerun of the same run.
- A request that cannot be read is cancelled.
- A crash leaves what a crash of a claim leaves: nothing, or pending runs that the sweep publishes.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy.orm import Session

from celery_dynbeat.beat.quarantine import quarantine_unreadable
from celery_dynbeat.common import task_allowlist
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.run_ids import is_run_id
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.models import Origin, Rerun
from celery_dynbeat.planning.outgoing_run import OutgoingRun
from celery_dynbeat.planning.plan import MICROSECOND
from celery_dynbeat.planning.rerun_planning import RerunSelection, RerunState, select_reruns
from celery_dynbeat.planning.schedule_spec import expires_at, max_run_time
from celery_dynbeat.runtime.reruns import Record, add_reruns, is_fire_time, rerun_record
from celery_dynbeat.store import due, holds, overlaps, reruns, run_rows
from celery_dynbeat.store.reruns import Position, RerunFilter
from celery_dynbeat.store.rows import Row, names_of

logger = logging.getLogger(__name__)

#: The time between two batches of one request.
BATCH_PAUSE = timedelta(seconds=1)
#: Runs of one request that wait for their schedules.
MAX_WAITING = 1_000
#: Runs that one batch searches for matching ones.
SEARCHED_PER_BATCH = 5_000
#: The position at the end of the search. No run id is greater.
LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"


class RerunBatch(NamedTuple):
    """The number of requests that were handled, and the new runs to publish."""

    handled: int
    outgoing: Sequence[OutgoingRun]


@dataclass(frozen=True, slots=True)
class _Found:
    """The candidates of a batch, oldest first, and the position of the search after it.

    ``left_out`` is the number of runs that no longer match or cannot be read. ``position`` is None
    at the end of the search.
    """

    candidates: Sequence[Row]
    left_out: int
    position: Position | None


def run_due_rerun(session: Session, *, now: datetime, settings: Settings) -> RerunBatch:
    """Make the next batch of the request that has been due the longest, if any."""
    locked = reruns.lock_oldest_due(session, now=now)
    for unreadable in locked.unreadable:
        _cancel(session, unreadable.id, str(unreadable), now=now)
    if not locked.rows:
        return RerunBatch(len(locked.unreadable), [])
    request = locked.rows[0]
    error = _error_of(request)
    if error is not None:
        _cancel(session, request.id, error, now=now)
        return RerunBatch(1, [])
    return RerunBatch(1, _run_batch(session, request, now=now, settings=settings))


def _error_of(request: Row) -> str | None:
    """Return why a batch cannot use a request that was written by SQL, or None."""
    for column in ("statuses", "waiting_ids", "unfinished_ids"):
        value = getattr(request, column)
        if not isinstance(value, list):
            return f"{column} is not an array"
    if not set(map(str, request.statuses)) <= set(Status):
        return "statuses has an unknown status"
    if not all(map(is_run_id, (*request.waiting_ids, *request.unfinished_ids))):
        return "waiting_ids or unfinished_ids has a value that is not the id of a run"
    return None


def _cancel(session: Session, rerun_id: int, error: str, *, now: datetime) -> None:
    names = names_of(session, Rerun, [rerun_id])[rerun_id]
    logger.error(
        "rerun %s cannot be read and is cancelled: %s",
        rerun_id,
        error,
        extra={
            "event": Event.RERUN_CANCELLED,
            "owner": names.owner,
            "schedule": names.name,
            "rerun_id": rerun_id,
        },
    )
    ended = {"next_run_at": None, "finished_at": now, "cancelled": True}
    reruns.change(session, rerun_id=rerun_id, values=ended)


def _run_batch(
    session: Session, request: Row, *, now: datetime, settings: Settings
) -> Sequence[OutgoingRun]:
    unfinished = reruns.unfinished_ids(
        session, request.unfinished_ids, started_after=now - settings.max_run_time
    )
    capacity = request.batch_size - len(unfinished)
    if capacity <= 0 or holds.end_of(session, owner=request.owner, now=now) is not None:
        until = now + settings.poll_interval
        reruns.change(session, rerun_id=request.id, values={"next_run_at": until})
        return []
    found = _find(session, request, capacity=capacity)
    rows = _lock_schedules(session, found.candidates, now=now, settings=settings)
    selection = select_reruns(found.candidates, rows.state(capacity))
    selection = _recheck(session, request, selection)
    outgoing = _record(session, request, selection, rows.by_id, now=now, settings=settings)
    values = _progress(request, found, selection, now=now, settings=settings)
    values["unfinished_ids"] = [*unfinished, *(run.run_id for run in outgoing)]
    reruns.change(session, rerun_id=request.id, values=values)
    return outgoing


def _find(session: Session, request: Row, *, capacity: int) -> _Found:
    """Return the runs that wait, and then the next runs that match."""
    new, position = _search(session, request, capacity=capacity)
    ids = [*request.waiting_ids, *new]
    parts = reruns.newest_by_ids(session, ids, statuses=request.statuses)
    by_id = {row.id: row for part in parts for row in part.rows}
    candidates = [by_id[run_id] for run_id in ids if run_id in by_id]
    return _Found(candidates, len(ids) - len(candidates), position)


def _search(
    session: Session, request: Row, *, capacity: int
) -> tuple[Sequence[str], Position | None]:
    """Return the ids of the next matching runs, and the position after them."""
    after = Position(request.after_at, request.after_id)
    limit = min(capacity, MAX_WAITING - len(request.waiting_ids))
    if limit <= 0:
        return (), after
    matching = _filter(request)
    last = reruns.last_position(session, matching, after=after, limit=SEARCHED_PER_BATCH)
    found = reruns.find(session, matching, after=after, last=last, limit=limit)
    ids = [each.run_id for each in found]
    # With as many as the limit, more runs may match before ``last``.
    return ids, found[-1] if len(found) == limit else last


def _filter(request: Row) -> RerunFilter:
    return RerunFilter(
        owner=request.owner,
        name=request.name,
        schedule_id=request.schedule_id,
        task=request.task,
        statuses=request.statuses,
        since=request.since,
        until=request.until,
        requested_at=request.created_at,
    )


@dataclass(frozen=True, slots=True)
class _Schedules:
    """The schedules that this transaction has locked and that can run, and why others wait."""

    by_id: Mapping[int, Row]
    unavailable: Collection[int]
    exclusive: Collection[int]
    busy: Collection[int]

    def state(self, capacity: int) -> RerunState:
        return RerunState(self.by_id, self.unavailable, self.exclusive, self.busy, capacity)


def _lock_schedules(
    session: Session, candidates: Sequence[Row], *, now: datetime, settings: Settings
) -> _Schedules:
    ids = sorted({each.schedule_id for each in candidates if each.schedule_id is not None})
    rows, unreadable = due.lock_by_ids(session, ids)
    quarantine_unreadable(session, unreadable, now=now)
    present = {row.id for row in rows} | {row.id for row in unreadable}
    missing = [each for each in ids if each not in present]
    held_owners = holds.ends_of(session, {row.owner for row in rows}, now=now)
    held = {row.id for row in rows if row.owner in held_owners}
    runnable = {row.id: row for row in rows if _can_run(row, now=now, settings=settings)}
    exclusive = {
        row.id: row for row in runnable.values() if (row.overlap or settings.overlap) != "allow"
    }
    busy = {
        run.schedule_id
        for run in overlaps.unfinished_runs(session, list(exclusive))
        if run.started_at is None
        or now - run.started_at < max_run_time(exclusive[run.schedule_id].max_run_time, settings)
    }
    locked = set(due.existing_ids(session, missing)) if missing else set()
    return _Schedules(runnable, locked | held, exclusive, busy)


def _recheck(session: Session, request: Row, selection: RerunSelection) -> RerunSelection:
    """Leave out the runs that got a rerun before this transaction locked their schedules."""
    ids = [each.id for each in selection.made]
    parts = reruns.newest_by_ids(session, ids, statuses=request.statuses)
    newest = {row.id for part in parts for row in part.rows}
    made = [each for each in selection.made if each.id in newest]
    return selection._replace(
        made=made, left_out=selection.left_out + len(selection.made) - len(made)
    )


def _can_run(row: Row, *, now: datetime, settings: Settings) -> bool:
    if not row.enabled or row.error is not None:
        return False
    try:
        task_allowlist.check(settings, owner=row.owner, task=row.task)
        max_run_time(row.max_run_time, settings)
        expires_at(row.expires_after, created_at=now, settings=settings)
    # A task that is not allowed, a duration out of range: only this schedule is affected.
    except (ArithmeticError, TypeError, ValueError):
        return False
    return True


def _record(
    session: Session,
    request: Row,
    selection: RerunSelection,
    rows: Mapping[int, Row],
    *,
    now: datetime,
    settings: Settings,
) -> Sequence[OutgoingRun]:
    if not selection.made:
        return []
    # After the request: its search must not find them.
    created_at = max(now, request.created_at + MICROSECOND)
    overdue_at = now + settings.dispatch_timeout
    outgoing: list[OutgoingRun] = []
    records: list[Record] = []
    for original in selection.made:
        row = rows[original.schedule_id]
        nominal_at = original.nominal_at or original.scheduled_for
        run = run_rows.new_outgoing_run(
            row, nominal_at, now=created_at, settings=settings, origin=Origin.RERUN
        )
        record = rerun_record(
            row,
            original,
            run_id=run.run_id,
            after=original.scheduled_for,
            created_at=created_at,
            overdue_at=overdue_at,
        )
        outgoing.append(run)
        records.append(record)

    def is_reserved(record: Record) -> bool:
        row = rows[record["schedule_id"]]
        return is_fire_time(row, record["scheduled_for"], settings=settings)

    reruns.touch_schedules(session, sorted({run.schedule_id for run in outgoing}))
    repeated = add_reruns(session, records, is_reserved=is_reserved)
    return [run for run in outgoing if run.run_id not in repeated]


def _progress(
    request: Row, found: _Found, selection: RerunSelection, *, now: datetime, settings: Settings
) -> dict[str, Any]:
    """Return the new progress of the request."""
    values: dict[str, Any] = {
        "made": request.made + len(selection.made),
        "left_out": request.left_out + found.left_out + selection.left_out,
        "waiting_ids": [each.id for each in selection.waiting],
    }
    if found.position is not None:
        values["after_at"], values["after_id"] = found.position
    elif not selection.waiting:
        # Also those that had a newer rerun when the search came to them.
        values["left_out"] = max(0, request.total - values["made"])
        return {**values, "next_run_at": None, "finished_at": now}
    else:
        values["after_at"], values["after_id"] = request.until, LAST_ID
    return {**values, "next_run_at": now + _pause(selection, settings)}


def _pause(selection: RerunSelection, settings: Settings) -> timedelta:
    if selection.made:
        return BATCH_PAUSE
    # Not BATCH_PAUSE: hundreds of waiting requests would take all of beat's time. If nothing waits,
    # only the search continues.
    return settings.poll_interval if selection.waiting else timedelta(0)
