"""The calls that read the history of runs."""

from dataclasses import replace
from datetime import datetime

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.filters import StatusFilter
from celery_dynbeat.api.results import BoundedCount, Page, RunInfo, ScheduleInfo, cursors
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Origin
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import schedules
from celery_dynbeat.store.runs import run_filters, run_pages
from celery_dynbeat.store.runs.run_filters import RunOrder
from celery_dynbeat.store.runs.run_pages import Position

#: How the parts of a key are read from a cursor.
_PARTS = {
    RunOrder.FIRE_TIME: (cursors.as_instant, cursors.as_run_id),
    RunOrder.RUN_ID: (cursors.as_run_id,),
    RunOrder.SCHEDULE: (cursors.as_schedule_id, cursors.as_run_id),
}


def filter_of(
    *,
    owner: str | None,
    name: str | None = None,
    status: StatusFilter | None = None,
    task: str | None = None,
    origin: str | None = None,
    worker: str | None = None,
    text: str | None = None,
    batch_id: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> run_filters.RunFilter:
    """Return the filter of a history from the arguments of a call, checked."""
    for field, value in {"name": name, "task": task, "worker": worker, "text": text}.items():
        if value is not None:
            checks.check_name(field, value)
    if origin is not None:
        checks.check_choice("origin", origin, *map(str, Origin))
    return run_filters.RunFilter(
        owner=owner,
        name=name,
        statuses=checks.check_choices("status", status, *Status),
        task=task,
        origin=origin,
        worker=worker,
        text=text,
        batch_id=None if batch_id is None else checks.check_run_id("batch_id", batch_id),
        since=checks.check_instant("since", since),
        until=checks.check_instant("until", until),
    )


def _position(matching: run_filters.RunFilter, after: str) -> Position:
    is_unfinished_of_all = matching.is_unfinished and matching.owner is None
    is_by_schedule = is_unfinished_of_all and cursors.order_of(after) == RunOrder.SCHEDULE
    order = RunOrder.SCHEDULE if is_by_schedule else matching.order
    return Position(order, cursors.decode(after, order=order, parts=_PARTS[order]))


def page(
    context: Context,
    session: Session | None,
    *,
    matching: run_filters.RunFilter,
    limit: int,
    after: str | None,
) -> Page[RunInfo]:
    """Return one page. Its cursor is None if it is the last page."""
    position = None if after is None else _position(matching, after)

    def work(session: Session) -> Page[RunInfo]:
        own = with_schedule(session, matching)
        found = run_pages.page(session, matching=own, after=position, limit=limit)
        last = found.last
        cursor = None if last is None else cursors.encode(last.order, last.key)
        return Page(tuple(map(RunInfo.of, found.rows)), cursor)

    return context.read_many(session, work)


def count(
    context: Context, session: Session | None, *, matching: run_filters.RunFilter
) -> BoundedCount:
    """Return the number of matching runs."""

    def work(session: Session) -> tuple[int, bool]:
        return run_pages.count(session, matching=with_schedule(session, matching))

    found, is_more = context.read_many(session, work)
    return BoundedCount(count=found, exact=not is_more)


def with_schedule(session: Session, matching: run_filters.RunFilter) -> run_filters.RunFilter:
    """Return the filter with the id of the schedule that it names, if that schedule exists."""
    if matching.name is None or matching.owner is None:
        return matching
    row = schedules.get(session, owner=matching.owner, name=matching.name)
    return matching if row is None else replace(matching, schedule_id=row.id)


def schedule_of(context: Context, run: RunInfo) -> ScheduleInfo | None:
    """Return the schedule of a run, or None if it was deleted. It may have another name now."""
    if (schedule_id := run.schedule_id) is None:
        return None
    row = context.read(
        None,
        lambda session: schedules.get_id(session, owner=run.owner, schedule_id=schedule_id),
    )
    return None if row is None else ScheduleInfo.of(row)
