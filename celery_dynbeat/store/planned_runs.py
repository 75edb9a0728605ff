"""When schedules run next: rows and counts by ``next_run_at``, in the order of the due index.

The schedules of an owner have no such index. Up to MAX_SCANNED of them are read by owner. An owner
with more is dense enough for the due index.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Integer, Select, and_, bindparam, case, func, select
from sqlalchemy.orm import Session

from celery_dynbeat.db.dialects import Capabilities, capabilities_of
from celery_dynbeat.db.index_order import force_index, in_index_order
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.store import rows
from celery_dynbeat.store.schedule_filters import ScheduleFilter, has_owner, others
from celery_dynbeat.store.span_reads import Span, read_spans, within_span

#: Rows of schedules that a query reads for a filter that its index does not serve.
MAX_SCANNED = 10_000
_DUE_INDEX = "ix_dynbeat_schedule_due"
_DUE_ORDER = (Schedule.next_run_at, Schedule.id)
_OWNER_INDEX = "uq_dynbeat_schedule_owner_name"
#: What the fire times of a schedule depend on.
_COLUMNS = tuple(
    getattr(Schedule, name)
    for name in (
        *("id", "owner", "name", "task", "tags", "trigger_kind", "trigger_spec", "timezone"),
        *("anchor_at", "start_at", "end_at", "max_runs", "run_count", "catch_up"),
        *("catch_up_window", "overlap", "max_run_time", "jitter", "created_at", "next_fire_at"),
        *("next_run_at", "held_at", "skipped_until", "last_run_at"),
    )
)


class PlannedRows(NamedTuple):
    """Schedules that run next in a span. ``is_more``: others can exist."""

    rows: Sequence[rows.Row]
    is_more: bool


class PlannedCounts(NamedTuple):
    """The number of schedules that run next in a span. ``is_more``: it is a lower bound."""

    planned: int = 0
    is_more: bool = False


@in_index_order
def next_runs(
    session: Session,
    *,
    matching: ScheduleFilter,
    until: datetime,
    limit: int,
    since: datetime | None = None,
) -> PlannedRows:
    """Return up to ``limit`` schedules with since <= next_run_at < until, earliest first.

    ``since`` None: all that are due before ``until``. Rows that Python cannot read are left out.
    """
    condition = _in_span(since, until)
    if matching.owner is not None and _is_small(session, matching.owner):
        return _of_small_owner(session, matching, condition, limit)
    filters = [*has_owner(matching), *others(session, matching)]
    end = _end_of_scan(session, condition) if filters else None
    read = force_index(select(*_COLUMNS), Schedule, _DUE_INDEX)
    ordered = read.where(*condition, *_until(end), *filters).order_by(*_DUE_ORDER).limit(limit + 1)
    found = rows.read(session, ordered, key=Schedule.id).rows
    return PlannedRows(found[:limit], end is not None or len(found) > limit)


def _of_small_owner(
    session: Session,
    matching: ScheduleFilter,
    condition: Sequence[ColumnElement[bool]],
    limit: int,
) -> PlannedRows:
    # Sorted here: for an ORDER BY, PostgreSQL would read the due index of all owners.
    keys = sorted((row.next_run_at, row.id) for row in _keys_of(session, matching, condition))
    ids = [row_id for _, row_id in keys[:limit]]
    chosen = select(*_COLUMNS).where(Schedule.id.in_(ids))
    found = rows.read(session, chosen, key=Schedule.id).rows
    earliest = sorted(found, key=lambda row: (row.next_run_at, row.id))
    return PlannedRows(earliest, len(keys) > limit)


def _keys_of(
    session: Session, matching: ScheduleFilter, condition: Sequence[ColumnElement[bool]]
) -> Sequence[rows.Row]:
    """Return id and next_run_at of the matching schedules of a small owner."""
    key: Any = force_index(select(Schedule.id, Schedule.next_run_at), Schedule, _OWNER_INDEX)
    statement = key.where(*has_owner(matching), *condition, *others(session, matching))
    return rows.read(session, statement, key=Schedule.id).rows


def _in_span(since: datetime | None, until: datetime) -> list[ColumnElement[bool]]:
    condition = [Schedule.next_run_at.is_not(None), Schedule.next_run_at < until]
    return condition if since is None else [*condition, Schedule.next_run_at >= since]


def _is_small(session: Session, owner: str) -> bool:
    """Return whether the schedules of the owner can all be read."""
    of_owner = force_index(select(Schedule.id), Schedule, _OWNER_INDEX)
    few = of_owner.where(Schedule.owner == owner).limit(MAX_SCANNED + 1).subquery()
    return (session.scalar(select(func.count()).select_from(few)) or 0) <= MAX_SCANNED


def _end_of_scan(session: Session, condition: Sequence[ColumnElement[bool]]) -> datetime | None:
    """Return ``next_run_at`` of the last row to read, None if there are fewer."""
    statement = force_index(select(Schedule.next_run_at), Schedule, _DUE_INDEX).where(*condition)
    ordered = statement.order_by(*_DUE_ORDER)
    return session.scalar(ordered.offset(MAX_SCANNED - 1).limit(1))


def _until(end: Any) -> Sequence[ColumnElement[bool]]:
    return [] if end is None else [Schedule.next_run_at <= end]


@in_index_order
def count_in_spans(
    session: Session, *, matching: ScheduleFilter, spans: Sequence[Span], limit: int
) -> Sequence[PlannedCounts]:
    """Count the schedules that run next in each span; up to ``limit`` rows of each are read."""
    capabilities = capabilities_of(session.get_bind(Schedule).dialect)
    query = _PlannedCounts(
        matching.owner is not None, matching.task is not None, matching.tag, capabilities
    )
    values = {"owner": matching.owner, "task": matching.task, "row_limit": limit}
    found = {
        row.number: PlannedCounts(int(row.planned or 0), row.rows_read >= limit)
        for row in read_spans(session, query, spans, key=Schedule.next_run_at, values=values)
    }
    return [found.get(number, PlannedCounts()) for number in range(len(spans))]


@dataclass(frozen=True, slots=True)
class _PlannedCounts:
    """The SELECT that counts the schedules of a span. Only a filter reads more than the index."""

    of_owner: bool
    of_task: bool
    tag: str | None
    capabilities: Capabilities

    def __call__(self, number: Any, start: Any, end: Any) -> Select[Any]:
        conditions = self._conditions()
        match = case((and_(*conditions), 1), else_=0) if conditions else Schedule.id
        statement = force_index(select(match.label("is_match")), Schedule, _DUE_INDEX)
        in_span = (Schedule.next_run_at >= start, Schedule.next_run_at < end)
        limited: Any = statement.where(*in_span).limit(bindparam("row_limit", type_=Integer))
        read = within_span(limited, start).subquery()
        planned = func.sum(read.c.is_match) if conditions else func.count()
        return select(
            number.label("number"),
            func.count().label("rows_read"),
            planned.label("planned"),
        ).select_from(read)

    def _conditions(self) -> Sequence[ColumnElement[bool]]:
        found = []
        if self.of_owner:
            found.append(and_(Schedule.owner == bindparam("owner", type_=Schedule.owner.type)))
        if self.of_task:
            found.append(and_(Schedule.task == bindparam("task", type_=Schedule.task.type)))
        if self.tag is not None:
            found.append(self.capabilities.has_tag(Schedule.tags, self.tag))
        return found


@in_index_order
def next_run_times(
    session: Session, *, matching: ScheduleFilter, until: datetime
) -> Sequence[datetime] | None:
    """Return each next_run_at before ``until`` of an owner's schedules, in any order.

    None for all owners, or for an owner with more than MAX_SCANNED schedules.
    """
    if matching.owner is None or not _is_small(session, matching.owner):
        return None
    found = _keys_of(session, matching, _in_span(None, until))
    return [row.next_run_at for row in found]
