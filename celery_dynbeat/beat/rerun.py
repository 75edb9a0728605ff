"""Select the ended runs that a batch of a rerun runs again.

    waiting runs, and the next runs that match -> lock their schedules -> record reruns

- If the runs of a schedule must not overlap, its ended runs wait while it has an unfinished run.
  Runs of other schedules do not wait for them, unless MAX_WAITING runs of the request wait. In that
  case, the request does not search for more.
- Excluded are runs that no longer match, that have a newer rerun, or whose schedule is deleted or
  must not run its task.
- In a request for all owners, the runs of a held owner wait. In the quiet hours of their owner,
  runs wait unless the caller asked otherwise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.beat.request_batch import (
    BATCH_PAUSE,
    Batch,
    Recorded,
    busy_schedules,
    exclusive_schedules,
    unfinished_runs,
    wait,
)
from celery_dynbeat.beat.waiting import days_of, is_quiet
from celery_dynbeat.common.settings import Settings, check_task_allowed
from celery_dynbeat.db.models import Origin
from celery_dynbeat.db.statements import Row
from celery_dynbeat.planning.plan import MICROSECOND, OutgoingRun
from celery_dynbeat.planning.rerun_planning import RerunSelection, RerunState, select_reruns
from celery_dynbeat.store import holds, reruns, schedules
from celery_dynbeat.store.reruns import Position, RerunFilter
from celery_dynbeat.store.schedules import due, run_rows
from celery_dynbeat.transitions.reruns import Record, add_reruns, is_fire_time, rerun_record

#: The maximum number of runs of one request that wait for their schedules.
MAX_WAITING = 1_000
#: The maximum number of runs that one batch searches.
SEARCHED_PER_BATCH = 5_000
#: The position at the end of the search. No run id is greater.
LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"


@dataclass(frozen=True, slots=True)
class _Found:
    """The candidates of a batch, oldest first, and the position of the search after it.

    ``excluded`` is the number of runs that no longer match. ``position`` is None at the end of the
    search.
    """

    candidates: Sequence[Row]
    excluded: int
    position: Position | None


def next_batch(session: Session, request: Row, *, now: datetime, settings: Settings) -> Batch:
    """Record the next batch of a request for reruns."""
    unfinished = unfinished_runs(session, request, started_after=now - settings.max_run_time)
    capacity = request.batch_size - len(unfinished)
    if capacity <= 0:
        return wait(now + settings.poll_interval)
    found = _find(session, request, capacity=capacity)
    state = _lock_schedules(
        session, request, found.candidates, capacity=capacity, now=now, settings=settings
    )
    selection = _recheck(session, request, select_reruns(found.candidates, state))
    recorded = _record(session, request, selection, state.runnable, now=now, settings=settings)
    values = _progress(request, found, selection, now=now, settings=settings)
    values["unfinished_ids"] = [*unfinished, *recorded.run_ids]
    return Batch(recorded.outgoing, values)


def _find(session: Session, request: Row, *, capacity: int) -> _Found:
    """Return the runs that wait, and then the next runs that match."""
    new, position = _search(session, request, capacity=capacity)
    ids = [*request.waiting_ids, *new]
    given = {"owner": request.owner, "statuses": request.statuses}
    newest = reruns.newest_by_ids(session, ids, **given)
    by_id = {row.id: row for row in newest}
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
    matching = _filter(session, request)
    last = reruns.last_position(session, matching, after=after, limit=SEARCHED_PER_BATCH)
    found = reruns.find(session, matching, after=after, last=last, limit=limit)
    ids = [each.run_id for each in found]
    # If the limit was reached, more runs may match before ``last``.
    return ids, found[-1] if len(found) == limit else last


def _filter(session: Session, request: Row) -> RerunFilter:
    return RerunFilter(
        owner=request.owner,
        name=request.name,
        schedule_id=schedules.find_id(session, owner=request.owner, name=request.name),
        task=request.task,
        statuses=request.statuses,
        since=request.since,
        until=request.until,
        requested_at=request.created_at,
    )


def _lock_schedules(
    session: Session,
    request: Row,
    candidates: Sequence[Row],
    *,
    capacity: int,
    now: datetime,
    settings: Settings,
) -> RerunState:
    """Lock the schedules of the candidates.

    Return the schedules that can run, and the reasons why others wait.
    """
    ids = sorted({each.schedule_id for each in candidates if each.schedule_id is not None})
    rows = due.lock_by_ids(session, ids)
    present = {row.id for row in rows}
    missing = [each for each in ids if each not in present]
    held_owners = holds.ends_of(session, {row.owner for row in rows}, now=now)
    held = {row.id for row in rows if row.owner in held_owners}
    if not request.ignores_quiet_hours:
        calendars = days_of(session, (row.quiet_hours for row in rows))
        held |= {row.id for row in rows if is_quiet(row.quiet_hours, calendars, now=now)}
    runnable = {row.id: row for row in rows if _can_run(row, settings=settings)}
    exclusive = exclusive_schedules(runnable, settings)
    busy = busy_schedules(session, exclusive, now=now, settings=settings)
    locked = set(due.existing_ids(session, missing)) if missing else set()
    return RerunState(runnable, locked | held, exclusive, busy, capacity)


def _recheck(session: Session, request: Row, selection: RerunSelection) -> RerunSelection:
    """Exclude the runs that got a rerun before this transaction locked their schedules."""
    ids = [each.id for each in selection.chosen]
    given = {"owner": request.owner, "statuses": request.statuses}
    newest = {row.id for row in reruns.newest_by_ids(session, ids, **given)}
    chosen = [each for each in selection.chosen if each.id in newest]
    return selection._replace(chosen=chosen, excluded=selection.excluded + len(ids) - len(chosen))


def _can_run(row: Row, *, settings: Settings) -> bool:
    try:
        run_rows.check_payload(row)
        check_task_allowed(settings, owner=row.owner, task=row.task)
    # The task is not allowed, or the arguments cannot be read. Only this schedule is affected.
    except (TypeError, ValueError):
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
) -> Recorded:
    if not selection.chosen:
        return Recorded((), ())
    # Later than the request, because the search of the request must not find its reruns.
    created_at = max(now, request.created_at + MICROSECOND)
    overdue_at = now + settings.dispatch_timeout
    outgoing: list[OutgoingRun] = []
    records: list[Record] = []
    for original in selection.chosen:
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
            request_id=request.id,
            ignores_quiet_hours=request.ignores_quiet_hours,
        )
        outgoing.append(run)
        records.append(record)

    calendars = schedules.calendars_of(session, rows.values())

    def is_reserved(record: Record) -> bool:
        row, instant = rows[record["schedule_id"]], record["scheduled_for"]
        return is_fire_time(row, instant, calendars=calendars, settings=settings)

    schedules.touch(session, sorted({run.schedule_id for run in outgoing}))
    added = add_reruns(session, records, is_reserved=is_reserved, settings=settings)
    recorded = [run for run in outgoing if run.run_id not in added.repeated]
    return Recorded(
        [run.run_id for run in recorded],
        [run for run in recorded if run.run_id not in added.waiting],
    )


def _progress(
    request: Row, found: _Found, selection: RerunSelection, *, now: datetime, settings: Settings
) -> dict[str, Any]:
    """Return the new progress of the request."""
    values: dict[str, Any] = {
        "created": request.created + len(selection.chosen),
        "excluded": request.excluded + found.excluded + selection.excluded,
        "waiting_ids": [each.id for each in selection.waiting],
    }
    if found.position is not None:
        values["after_at"], values["after_id"] = found.position
    elif not selection.waiting:
        # This includes runs that had a newer rerun when the search reached them.
        values["excluded"] = max(0, request.total - values["created"])
        return {**values, "next_run_at": None, "finished_at": now}
    else:
        values["after_at"], values["after_id"] = request.until, LAST_ID
    return {**values, "next_run_at": now + _pause(selection, settings)}


def _pause(selection: RerunSelection, settings: Settings) -> timedelta:
    if selection.chosen:
        return BATCH_PAUSE
    # BATCH_PAUSE would be too short, because hundreds of waiting requests would take all of beat's
    # time. If nothing waits, only the search continues.
    return settings.poll_interval if selection.waiting else timedelta(0)
