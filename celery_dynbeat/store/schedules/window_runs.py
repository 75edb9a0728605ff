"""Runs of a window of time, of all owners or of one owner.

    of all owners    by the time of their record, which their id begins with: primary key
    of one owner     by fire time: (owner, scheduled_for)
    by end           as the rollup counts them: finished_at

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
    and_,
    bindparam,
    case,
    exists,
    func,
    or_,
    select,
    true,
)
from sqlalchemy.orm import Session

from celery_dynbeat.common.run_ids import first_run_id
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.dialects import Capabilities, capabilities_of
from celery_dynbeat.db.models import Run, Schedule
from celery_dynbeat.db.statements import force_index, in_index_order
from celery_dynbeat.store.rollups import select_by_end
from celery_dynbeat.store.runs.run_filters import OWNER_INDEX, UNSUCCESSFUL
from celery_dynbeat.store.schedules.schedule_filters import ScheduleFilter
from celery_dynbeat.store.span_reads import Span, read_spans, within_span

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
    def key(self) -> Any:
        """The column of the span."""
        return Run.finished_at if self.by_end else _key(self.matching)


class WindowCounts(NamedTuple):
    """The numbers of runs, and of failed or lost ones. With ``is_more``, they are lower bounds."""

    runs: int = 0
    failed: int = 0
    is_more: bool = False


@in_index_order
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
    span = Span(since, until) if by_end else span_of(matching, since, until)
    window = RunWindow(matching=matching, span=span, by_end=by_end)
    key = window.key
    oldest = _in_window(window, key).order_by(key.desc()).offset(limit - 1).limit(1)
    start = session.scalar(oldest)
    if start is None:
        return window
    return replace(window, span=Span(start, window.span.end), is_cut=True)


def span_of(matching: ScheduleFilter, since: datetime, until: datetime) -> Span:
    """Return the span of the key of a window."""
    if is_by_fire_time(matching):
        return Span(since, until)
    return Span(first_run_id(since), first_run_id(until))


def is_by_fire_time(matching: ScheduleFilter) -> bool:
    """Return whether the key is the fire time: of one owner."""
    return matching.owner is not None


def _key(matching: ScheduleFilter) -> Any:
    return Run.scheduled_for if is_by_fire_time(matching) else Run.id


def _in_window(window: RunWindow, *columns: Any) -> Select[Any]:
    if window.by_end:
        start, end = window.span
        ended: Select[Any] = select_by_end(*columns)
        return ended.where(Run.finished_at >= start, Run.finished_at < end)
    of_owner = is_by_fire_time(window.matching)
    return _in_span(*window.span, *columns, of_owner=of_owner).params(owner=window.matching.owner)


def _in_span(start: Any, end: Any, *columns: Any, of_owner: bool) -> Select[Any]:
    statement: Select[Any] = select(*columns)
    if of_owner:
        owner = bindparam("owner", type_=Run.owner.type)
        condition = (Run.owner == owner, Run.scheduled_for >= start, Run.scheduled_for < end)
        return force_index(statement, Run, OWNER_INDEX).where(*condition)
    statement = force_index(statement, Run, "PRIMARY")
    return statement.where(Run.id >= start, Run.id < end)


def _matches(session: Session, matching: ScheduleFilter) -> Sequence[ColumnElement[bool]]:
    """Return the conditions on task and tag."""
    conditions = [] if matching.task is None else [and_(Run.task == matching.task)]
    if matching.tag is not None:
        capabilities = capabilities_of(session.get_bind(Run).dialect)
        conditions.append(_has_tag(Run.schedule_id, matching.tag, capabilities))
    return conditions


def _has_tag(schedule_id: Any, tag: str, capabilities: Capabilities) -> ColumnElement[bool]:
    has_tag = capabilities.has_tag(Schedule.tags, tag)
    return exists(select(Schedule.id).where(Schedule.id == schedule_id, has_tag))


@in_index_order
def schedules_of(session: Session, window: RunWindow, *, limit: int) -> Sequence[tuple[str, str]]:
    """Return owner and name of up to ``limit`` schedules that have a run in the window."""
    read = _read_of(session, window, Run.owner, Run.name)
    distinct = select(read.c.owner, read.c.name).distinct().limit(limit)
    return [(row.owner, row.name) for row in session.execute(distinct)]


def _read_of(session: Session, window: RunWindow, *columns: Any) -> Subquery:
    """Return the matching runs of the window, in a form that is read by the key.

    Without the limit, PostgreSQL reads the index by owner for a DISTINCT or GROUP BY.
    """
    matching = _in_window(window, *columns).where(*_matches(session, window.matching))
    return matching.order_by(window.key.desc()).limit(MAX_SCANNED).subquery()


@in_index_order
def runs_of(session: Session, window: RunWindow, *, limit: int) -> Sequence[Row[Any]]:
    """Return up to ``limit`` runs of the window, the newest first."""
    columns = (
        *(Run.id, Run.schedule_id, Run.owner, Run.name, Run.task, Run.status),
        *(Run.scheduled_for, Run.nominal_at, Run.started_at, Run.finished_at),
    )
    statement = _in_window(window, *columns).where(*_matches(session, window.matching))
    newest = statement.order_by(window.key.desc(), Run.id.desc()).limit(limit)
    return session.execute(newest).all()


@in_index_order
def counts_by_schedule(session: Session, window: RunWindow, *, limit: int) -> Sequence[Row[Any]]:
    """Return the schedules with the most runs in the window: owner, name, task and the numbers.

    Skipped fire times are not runs.
    """
    read = _read_of(session, window, Run.owner, Run.name, Run.task, Run.status, Run.attempt)
    failed = func.sum(case((read.c.status.in_(UNSUCCESSFUL), 1), else_=0)).label("failed")
    number = func.count().label("runs")
    task = func.max(read.c.task).label("task")
    statement = select(read.c.owner, read.c.name, task, number, failed)
    is_run = or_(read.c.status != Status.SKIPPED, read.c.attempt > 0)
    grouped = statement.where(is_run).group_by(read.c.owner, read.c.name)
    most = grouped.order_by(number.desc(), read.c.owner, read.c.name)
    return session.execute(most.limit(limit)).all()


@in_index_order
def count_in_spans(
    session: Session, *, matching: ScheduleFilter, spans: Sequence[Span], limit: int
) -> Sequence[WindowCounts]:
    """Count the runs of each span of the key; up to ``limit`` rows of each are read."""
    capabilities = capabilities_of(session.get_bind(Run).dialect)
    query = _WindowCounts(
        is_by_fire_time(matching),
        matching.task is not None,
        matching.tag,
        capabilities,
    )
    values = {"owner": matching.owner, "task": matching.task, "row_limit": limit}
    rows = read_spans(session, query, spans, key=_key(matching), values=values)
    found = {
        row.number: WindowCounts(int(row.runs or 0), int(row.failed or 0), row.rows_read >= limit)
        for row in rows
    }
    return [found.get(number, WindowCounts()) for number in range(len(spans))]


@dataclass(frozen=True, slots=True)
class _WindowCounts:
    """The SELECT that counts the runs of a span. The filter applies to the rows that it reads."""

    of_owner: bool
    of_task: bool
    tag: str | None
    capabilities: Capabilities

    def __call__(self, number: Any, start: Any, end: Any) -> Select[Any]:
        columns: list[Any] = [Run.status, *([Run.task] if self.of_task else [])]
        columns += [Run.schedule_id] if self.tag is not None else []
        limited = _in_span(start, end, *columns, of_owner=self.of_owner).limit(
            bindparam("row_limit", type_=Integer)
        )
        read = within_span(limited, start).subquery()
        is_run = and_(read.c.status != Status.SKIPPED, *self._conditions(read))
        is_failed = and_(read.c.status.in_(UNSUCCESSFUL), *self._conditions(read))
        return select(
            number.label("number"),
            func.count().label("rows_read"),
            func.sum(case((is_run, 1), else_=0)).label("runs"),
            func.sum(case((is_failed, 1), else_=0)).label("failed"),
        ).select_from(read)

    def _conditions(self, read: Any) -> Sequence[ColumnElement[bool]]:
        found: list[ColumnElement[bool]] = [true()]
        if self.of_task:
            found.append(read.c.task == bindparam("task", type_=Run.task.type))
        if self.tag is not None:
            found.append(_has_tag(read.c.schedule_id, self.tag, self.capabilities))
        return found
