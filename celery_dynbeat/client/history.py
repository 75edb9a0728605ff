"""The history of runs: one run, and pages of runs of an owner or of all owners."""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from typing import TypeAlias

from sqlalchemy.orm import Session

from celery_dynbeat.client import checks
from celery_dynbeat.client.queries import check_limit
from celery_dynbeat.client.views import BoundedCount, RunInfo, RunPage, cursors
from celery_dynbeat.common.errors import RunNotFoundError
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.db.models import Origin
from celery_dynbeat.runtime.context import Context
from celery_dynbeat.store import run_pages, runs, schedules
from celery_dynbeat.store.run_filters import RunFilter, RunOrder
from celery_dynbeat.store.run_pages import Position

#: A status, or several: ``"failed"``, ``("failed", "lost")``.
StatusFilter: TypeAlias = str | Collection[str]


#: How the parts of a key are read from a cursor.
_PARTS = {
    RunOrder.FIRE_TIME: (cursors.as_instant, cursors.as_run_id),
    RunOrder.RUN_ID: (cursors.as_run_id,),
    RunOrder.SCHEDULE: (cursors.as_schedule_id, cursors.as_run_id),
}


class RunCalls:
    """The calls of OwnerSchedules for the history."""

    _context: Context
    owner: str

    def run(self, run_id: str, *, session: Session | None = None) -> RunInfo:
        """Return the run with this id, which is also its Celery task id.

        Raises RunNotFoundError, also for the run of another owner.
        """
        return get(self._context, session, owner=self.owner, run_id=run_id)

    def runs(
        self,
        name: str | None = None,
        *,
        status: StatusFilter | None = None,
        task: str | None = None,
        origin: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 20,
        after: str | None = None,
        session: Session | None = None,
    ) -> RunPage:
        """Return one page of up to ``limit`` runs, newest fire time first.

        Without ``name``, the runs of all schedules of the owner are returned. The history of a
        deleted schedule stays readable under its name; a schedule that exists has only its own.

        - ``status``: one status, or several. ``task``: the exact name.
        - ``since``, ``until``: aware datetimes; since <= fire time < until.
        - ``after``: the ``cursor`` of the previous page. ``limit`` is at most 1,000.

        A page reads at most 10,000 runs. If few of them match, it has fewer than ``limit`` runs,
        or none, and a cursor: the history ends where the cursor is None. A filter on unfinished
        statuses only reads the unfinished runs, if there are at most 10,000. Raises
        InvalidScheduleError.
        """
        if name is not None:
            checks.check_name("name", name)
        matching = filter_of(
            owner=self.owner,
            name=name,
            status=status,
            task=task,
            origin=origin,
            since=since,
            until=until,
        )
        return page(self._context, session, matching=matching, limit=limit, after=after)

    def count_runs(
        self,
        name: str | None = None,
        *,
        status: StatusFilter | None = None,
        task: str | None = None,
        origin: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        session: Session | None = None,
    ) -> BoundedCount:
        """Return the number of runs that match, up to 10,000: ``"10,000+"`` as text.

        The filters are those of ``runs()``. At most 10,001 runs are read, the newest first. So with
        a filter on status, task or origin the count in a long history can be a lower bound. Raises
        InvalidScheduleError.
        """
        if name is not None:
            checks.check_name("name", name)
        matching = filter_of(
            owner=self.owner,
            name=name,
            status=status,
            task=task,
            origin=origin,
            since=since,
            until=until,
        )
        return count(self._context, session, matching=matching)


def get(context: Context, session: Session | None, *, owner: str | None, run_id: str) -> RunInfo:
    """Return the run, of this owner if one is given. Raises RunNotFoundError."""
    run_id = checks.check_run_id("run_id", run_id)

    def work(session: Session) -> RunInfo:
        run = runs.get(session, run_id=run_id)
        if run is None or owner not in {None, run.owner}:
            raise RunNotFoundError(owner=owner, run_id=run_id)
        return RunInfo.of(run)

    return context.read(session, work)


def filter_of(
    *,
    owner: str | None,
    name: str | None,
    status: StatusFilter | None,
    task: str | None,
    origin: str | None,
    since: datetime | None,
    until: datetime | None,
) -> RunFilter:
    """Return the filter of a history from the arguments of a call, checked."""
    if task is not None:
        checks.check_name("task", task)
    if origin is not None:
        checks.check_choice("origin", origin, *map(str, Origin))
    return RunFilter(
        owner=owner,
        name=name,
        statuses=checks.check_choices("status", status, *Status),
        task=task,
        origin=origin,
        since=checks.check_instant("since", since),
        until=checks.check_instant("until", until),
    )


def page(
    context: Context,
    session: Session | None,
    *,
    matching: RunFilter,
    limit: int,
    after: str | None,
) -> RunPage:
    """Return one page of the history."""
    check_limit("limit", limit)
    position = None if after is None else _position(matching, after)

    def work(session: Session) -> RunPage:
        own = with_schedule(session, matching)
        found = run_pages.page(session, matching=own, after=position, limit=limit)
        last = found.last
        cursor = None if last is None else cursors.encode(last.order, last.key)
        return RunPage(tuple(map(RunInfo.of, found.rows)), cursor)

    return context.read_many(session, work)


def _position(matching: RunFilter, after: str) -> Position:
    is_unfinished_of_all = matching.is_unfinished and matching.owner is None
    is_by_schedule = is_unfinished_of_all and cursors.order_of(after) == RunOrder.SCHEDULE
    order = RunOrder.SCHEDULE if is_by_schedule else matching.order
    return Position(order, cursors.decode(after, order=order, parts=_PARTS[order]))


def count(context: Context, session: Session | None, *, matching: RunFilter) -> BoundedCount:
    """Return the number of matching runs."""

    def work(session: Session) -> tuple[int, bool]:
        return run_pages.count(session, matching=with_schedule(session, matching))

    found, is_more = context.read_many(session, work)
    return BoundedCount(count=found, exact=not is_more)


def with_schedule(session: Session, matching: RunFilter) -> RunFilter:
    """Return the filter with the id of the schedule that it names, if that schedule exists."""
    if matching.name is None or matching.owner is None:
        return matching
    row = schedules.get(session, owner=matching.owner, name=matching.name)
    return matching if row is None else replace(matching, schedule_id=row.id)
