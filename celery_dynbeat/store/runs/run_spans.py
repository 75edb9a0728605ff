"""Runs of spans of time: of one schedule, of many schedules, of one owner and of all owners.

    of a schedule    by fire time: unique (schedule_id, fire_at)
    of an owner      by fire time: (owner, fire_at)
    of all owners    by the time of their record, which their id begins with: primary key
    by end           as the rollup counts them: finished_at

Each of many schedules or spans has its own SELECT with a LIMIT. One SELECT of all schedules would
read their whole histories. A window is one span, of which the newest runs are read.

A run is recorded when its fire time has come. Rows that ``skip()`` wrote ahead of a fire time are
left out where the time of the record counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Integer,
    Row,
    Select,
    Subquery,
    bindparam,
    case,
    exists,
    func,
    or_,
    select,
)
from sqlalchemy.orm import Session

from celery_dynbeat.common.filters import ScheduleFilter
from celery_dynbeat.common.run_ids import created_at, first_run_id
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run, Schedule
from celery_dynbeat.db.statements import capabilities_in
from celery_dynbeat.db.types import UtcDateTime
from celery_dynbeat.store.runs.run_pages import UNSUCCESSFUL
from celery_dynbeat.store.span_reads import Span, read_spans, within_span

_TIMES = (Run.sent_at, Run.ready_at, Run.started_at, Run.finished_at)
#: Characters of an error.
MAX_ERROR = 200
_RECENT: tuple[Any, ...] = (
    Run.schedule_id,
    Run.id,
    Run.status,
    Run.origin,
    Run.fire_at,
    Run.nominal_at,
    Run.fire_count,
    Run.attempt,
    *_TIMES,
    func.substr(Run.error, 1, MAX_ERROR, type_=Run.error.type).label("error"),
)


class RunCounts(NamedTuple):
    """The numbers of rows of a span. If ``total`` is the limit, all are lower bounds."""

    total: int = 0
    failed: int = 0
    skipped: int = 0


def count_of_schedule(
    session: Session, *, schedule_id: int, spans: Sequence[Span], limit: int
) -> Sequence[RunCounts]:
    """Count the runs of a schedule in each span of fire times; ``limit`` is per span."""
    values = {"schedule_id": schedule_id, "row_limit": limit}
    rows = read_spans(session, _counts, spans, key=Run.fire_at, values=values)
    found = {
        row.number: RunCounts(int(row.total), int(row.failed or 0), int(row.skipped or 0))
        for row in rows
    }
    return [found.get(number, RunCounts()) for number in range(len(spans))]


def _counts(number: Any, start: Any, end: Any) -> Select[Any]:
    read = _newest(start, end, Run.status).subquery()
    return select(
        number.label("number"),
        func.count().label("total"),
        func.sum(case((read.c.status.in_(UNSUCCESSFUL), 1), else_=0)).label("failed"),
        func.sum(case((read.c.status == Status.SKIPPED, 1), else_=0)).label("skipped"),
    ).select_from(read)


def _newest(start: Any, end: Any, *columns: Any) -> Select[Any]:
    """Return the SELECT of the newest runs of a span."""
    of_schedule = Run.schedule_id == bindparam("schedule_id", type_=Schedule.id.type)
    statement: Select[Any] = (
        select(*columns)
        .where(of_schedule, Run.fire_at >= start, Run.fire_at < end)
        .order_by(Run.fire_at.desc())
        .limit(bindparam("row_limit", type_=Integer))
    )
    return within_span(statement, start)


def newest_of_schedule(
    session: Session, *, schedule_id: int, since: datetime, until: datetime, limit: int
) -> Sequence[Row[Any]]:
    """Return the newest ``limit`` runs with since <= fire time < until.

    The columns are id, status, attempt, origin, fire_at, sent_at, ready_at, started_at and
    finished_at.
    """
    columns = (Run.id, Run.status, Run.attempt, Run.origin, Run.fire_at)
    statement = _newest(since, until, *columns, *_TIMES)
    return session.execute(statement, {"schedule_id": schedule_id, "row_limit": limit}).all()


def newest_of_each(
    session: Session, *, schedule_ids: Sequence[int], until: datetime, limit: int
) -> Sequence[Row[Any]]:
    """Return the last ``limit`` runs of each schedule with ``fire_at`` up to ``until``.

    The order of the rows is any.
    """
    spans = [Span(schedule_id, schedule_id + 1) for schedule_id in schedule_ids]
    values = {"until": until, "row_limit": limit}
    return read_spans(session, _newest_of_one, spans, key=Run.schedule_id, values=values)


def _newest_of_one(number: Any, start: Any, end: Any) -> Select[Any]:
    statement: Select[Any] = (
        select(number.label("number"), *_RECENT)
        .where(
            Run.schedule_id == start,
            Run.fire_at <= bindparam("until", type_=UtcDateTime),
            # The span of a term that is not used is empty.
            start < end,
        )
        .order_by(Run.fire_at.desc())
        .limit(bindparam("row_limit", type_=Integer))
    )
    return statement


#: Rows of a window that are read.
MAX_SCANNED = 10_000
#: The same with a tag: each row needs a look at its schedule.
MAX_SCANNED_WITH_TAG = 2_500


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWindow:
    """The matching runs of a window. ``span`` limits the key. ``is_cut``: older ones exist."""

    matching: ScheduleFilter
    span: Span
    by_end: bool = False
    is_cut: bool = False

    @property
    def since(self) -> datetime:
        """The instant from which the runs are read."""
        start = self.span.start
        return start if isinstance(start, datetime) else created_at(start)

    @property
    def key(self) -> Any:
        """The column of the span."""
        if self.by_end:
            return Run.finished_at
        return Run.id if self.matching.owner is None else Run.fire_at

    def select(self, *columns: Any) -> Select[Any]:
        """Return the SELECT of all runs of the window, by the index of the key."""
        start, end = self.span
        conditions = [self.key >= start, self.key < end]
        if not self.by_end and self.matching.owner is not None:
            conditions.append(Run.owner == self.matching.owner)
        selected: Select[Any] = select(*columns)
        return selected.where(*conditions)


def bounded_window(
    session: Session,
    *,
    matching: ScheduleFilter,
    since: datetime,
    until: datetime,
    by_end: bool = False,
) -> RunWindow:
    """Return the window of runs with its newest MAX_SCANNED or MAX_SCANNED_WITH_TAG rows."""
    limit = MAX_SCANNED if matching.tag is None else MAX_SCANNED_WITH_TAG
    is_by_id = matching.owner is None and not by_end
    span = Span(first_run_id(since), first_run_id(until)) if is_by_id else Span(since, until)
    window = RunWindow(matching=matching, span=span, by_end=by_end)
    oldest = window.select(window.key).order_by(window.key.desc()).offset(limit - 1).limit(1)
    start = session.scalar(oldest)
    return window if start is None else replace(window, span=Span(start, span.end), is_cut=True)


def _matching(session: Session, window: RunWindow, *columns: Any) -> Select[Any]:
    """Return the SELECT of the runs of the window with the task and the tag of its filter."""
    matching, statement = window.matching, window.select(*columns)
    if matching.task is not None:
        statement = statement.where(Run.task == matching.task)
    if matching.tag is not None:
        capabilities = capabilities_in(session)
        has_tag = capabilities.has_tag(Schedule.tags, matching.tag)
        schedule = select(Schedule.id).where(Schedule.id == Run.schedule_id, has_tag)
        statement = statement.where(exists(schedule))
    return statement


def schedules_of(session: Session, window: RunWindow, *, limit: int) -> Sequence[tuple[str, str]]:
    """Return owner and name of up to ``limit`` schedules that have a run in the window."""
    read = _read_of(session, window, Run.owner, Run.name)
    distinct = select(read.c.owner, read.c.name).distinct().limit(limit)
    return [(row.owner, row.name) for row in session.execute(distinct)]


def _read_of(session: Session, window: RunWindow, *columns: Any) -> Subquery:
    """Return the matching runs of the window, in a form that is read by the key.

    Without the limit, PostgreSQL reads the index by owner for a DISTINCT or GROUP BY.
    """
    newest = _matching(session, window, *columns).order_by(window.key.desc())
    return newest.limit(MAX_SCANNED).subquery()


def runs_of(session: Session, window: RunWindow, *, limit: int) -> Sequence[Row[Any]]:
    """Return up to ``limit`` runs of the window, the newest first.

    ``fire_at`` of a rerun is the fire time that it repeats.
    """
    columns = (
        *(Run.id, Run.schedule_id, Run.owner, Run.name, Run.task, Run.status),
        func.coalesce(Run.nominal_at, Run.fire_at, type_=Run.fire_at.type).label("fire_at"),
        *(Run.started_at, Run.finished_at),
    )
    newest = _matching(session, window, *columns).order_by(window.key.desc(), Run.id.desc())
    return session.execute(newest.limit(limit)).all()


def counts_by_schedule(session: Session, window: RunWindow, *, limit: int) -> Sequence[Row[Any]]:
    """Return the schedules with the most runs in the window: owner, name, task and the numbers.

    Skipped fire times are not runs.
    """
    read = _read_of(session, window, Run.owner, Run.name, Run.task, Run.status, Run.attempt)
    failed = func.sum(case((read.c.status.in_(UNSUCCESSFUL), 1), else_=0)).label("failed")
    number = func.count().label("runs")
    task = func.max(read.c.task).label("task")
    statement = select(read.c.owner, read.c.name, task, number, failed)
    grouped = statement.where(_is_run(read)).group_by(read.c.owner, read.c.name)
    most = grouped.order_by(number.desc(), read.c.owner, read.c.name)
    return session.execute(most.limit(limit)).all()


def instants_of(session: Session, window: RunWindow) -> Sequence[Row[Any]]:
    """Return ``at`` and ``is_failed`` of the runs in the window. Skipped fire times are no runs."""
    at = Run.created_at if window.matching.owner is None else Run.fire_at
    read = _read_of(session, window, at.label("at"), Run.status, Run.attempt)
    is_failed = read.c.status.in_(UNSUCCESSFUL).label("is_failed")
    return session.execute(select(read.c.at, is_failed).where(_is_run(read))).all()


def _is_run(read: Subquery) -> ColumnElement[bool]:
    return or_(read.c.status != Status.SKIPPED, read.c.attempt > 0)
