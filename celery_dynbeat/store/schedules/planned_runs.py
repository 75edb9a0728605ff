"""When schedules run next: rows, and counts by minute, in the order of the due index.

The schedules of an owner have no such index. Up to MAX_SCANNED of them are read by owner. An owner
with more is dense enough for the due index.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, Text, and_, case, func, not_, or_, select, true
from sqlalchemy.orm import Session

from celery_dynbeat.db import statements
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.db.statements import force_index, in_index_order
from celery_dynbeat.db.types import as_text
from celery_dynbeat.store.schedules.schedule_filters import (
    ScheduleFilter,
    has_owner,
    others,
)
from celery_dynbeat.triggers.once import Once

#: Rows of schedules that a query reads for a filter that its index does not serve.
MAX_SCANNED = 10_000
#: Schedules that are counted by the minute of their next run.
MAX_COUNTED = 50_000
_DUE_INDEX = "ix_dynbeat_schedule_due"
_DUE_ORDER = (Schedule.next_run_at, Schedule.id)
_OWNER_INDEX = "uq_dynbeat_schedule_owner_name"
#: What the fire times of a schedule depend on.
_COLUMNS = tuple(
    getattr(Schedule, name)
    for name in (
        *("id", "owner", "name", "task", "tags", "trigger_kind", "trigger_spec", "timezone"),
        *(
            "hash_name",
            "quiet_hours",
            "anchor_at",
            "start_at",
            "end_at",
            "max_runs",
            "run_count",
            "catch_up",
        ),
        *("catch_up_window", "overlap", "max_run_time", "window", "created_at", "next_fire_at"),
        *("next_run_at", "held_at", "skips", "last_run_at", "options"),
    )
)


class PlannedRows(NamedTuple):
    """Schedules that run next in a span. ``is_more`` is true if there can be others."""

    rows: Sequence[statements.Row]
    is_more: bool


class PlannedMinute(NamedTuple):
    """The number of schedules with these options that run next in the minute from ``at``.

    ``options`` are JSON.
    """

    at: datetime
    task: str
    options: str
    schedules: int


class PlannedMinutes(NamedTuple):
    """Schedules by the minute of their next run. With ``is_more``, the numbers are lower bounds."""

    minutes: Sequence[PlannedMinute]
    is_more: bool


@in_index_order
def next_runs(
    session: Session,
    *,
    matching: ScheduleFilter,
    until: datetime,
    limit: int,
    since: datetime | None = None,
    except_for: PlannedRows | None = None,
) -> PlannedRows:
    """Return up to ``limit`` schedules with since <= next_run_at < until, earliest first.

    Without ``since`` all that are due before ``until``. ``except_for`` is a result of ``recurring``
    whose schedules are left out.
    """
    chosen = [] if except_for is None else [_is_not_in(session, except_for)]
    return _next_runs(session, matching, _in_span(since, until), chosen, limit)


@in_index_order
def recurring(
    session: Session, *, matching: ScheduleFilter, until: datetime, limit: int
) -> PlannedRows:
    """Return up to ``limit`` schedules with next_run_at < until that can run again, earliest first.

    They are searched in the next MAX_SCANNED schedules.
    """
    return _next_runs(session, matching, _in_span(None, until), [not_(_is_once())], limit)


def _next_runs(
    session: Session,
    matching: ScheduleFilter,
    span: Sequence[ColumnElement[bool]],
    chosen: Sequence[ColumnElement[bool]],
    limit: int,
) -> PlannedRows:
    if matching.owner is not None and _is_small(session, matching.owner):
        return _of_small_owner(session, matching, [*span, *chosen], limit)
    filters = [*chosen, *has_owner(matching), *others(session, matching)]
    end = _end_of_scan(session, span) if filters else None
    read = force_index(select(*_COLUMNS), Schedule, _DUE_INDEX)
    ordered = read.where(*span, *_until(end), *filters).order_by(*_DUE_ORDER).limit(limit + 1)
    found = statements.read(session, ordered)
    return PlannedRows(found[:limit], end is not None or len(found) > limit)


def _is_once() -> ColumnElement[bool]:
    # Only the plan of a row with skips knows whether it runs.
    return and_(Schedule.trigger_kind == Once.kind, Schedule.skips.is_(None))


def _is_not_in(session: Session, found: PlannedRows) -> ColumnElement[bool]:
    """Return the condition that ``recurring`` did not find the schedule."""
    if not found.is_more:
        return _is_once()
    if not found.rows:
        return true()
    capabilities = capabilities_of(session.get_bind(Schedule).dialect)
    last = found.rows[-1]
    return or_(_is_once(), capabilities.row_after(_DUE_ORDER, (last.next_run_at, last.id)))


@in_index_order
def by_minute(
    session: Session, *, matching: ScheduleFilter, until: datetime, except_for: PlannedRows
) -> PlannedMinutes:
    """Count the schedules by the minute of their next run before ``until``, and by their options.

    ``except_for`` is a result of ``recurring`` whose schedules are left out. The next MAX_COUNTED
    schedules are read.
    """
    chosen = [_is_not_in(session, except_for), *others(session, matching)]
    is_small = matching.owner is not None and _is_small(session, matching.owner)
    chosen += has_owner(matching)
    capabilities = capabilities_of(session.get_bind(Schedule).dialect)
    columns: Select[Any] = select(
        capabilities.minute_of(Schedule.next_run_at).label("minute"),
        Schedule.task,
        as_text(Schedule.options, type_=Text()).label("options"),
        case((and_(*chosen), 1), else_=0).label("is_chosen"),
    )
    read = force_index(columns, Schedule, _OWNER_INDEX if is_small else _DUE_INDEX)
    condition = _in_span(None, until)
    if is_small:
        inside = read.where(*condition, *has_owner(matching)).subquery()
    else:
        inside = read.where(*condition).order_by(*_DUE_ORDER).limit(MAX_COUNTED).subquery()
    key = (inside.c.minute, inside.c.task, inside.c.options)
    counts = (func.count().label("rows_read"), func.sum(inside.c.is_chosen).label("schedules"))
    rows = session.execute(select(*key, *counts).group_by(*key)).all()
    minutes = [
        PlannedMinute(_instant(row.minute), row.task, row.options, int(row.schedules))
        for row in rows
        if row.schedules
    ]
    is_more = not is_small and sum(row.rows_read for row in rows) >= MAX_COUNTED
    return PlannedMinutes(minutes, is_more)


def _instant(minute: str) -> datetime:
    return datetime.fromisoformat(minute).replace(tzinfo=UTC)


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
    found = statements.read(session, chosen)
    earliest = sorted(found, key=lambda row: (row.next_run_at, row.id))
    return PlannedRows(earliest, len(keys) > limit)


def _keys_of(
    session: Session, matching: ScheduleFilter, condition: Sequence[ColumnElement[bool]]
) -> Sequence[statements.Row]:
    """Return id and next_run_at of the matching schedules of a small owner."""
    key: Any = force_index(select(Schedule.id, Schedule.next_run_at), Schedule, _OWNER_INDEX)
    statement = key.where(*has_owner(matching), *condition, *others(session, matching))
    return statements.read(session, statement)


def _in_span(since: datetime | None, until: datetime) -> list[ColumnElement[bool]]:
    condition = [Schedule.next_run_at.is_not(None), Schedule.next_run_at < until]
    return condition if since is None else [*condition, Schedule.next_run_at >= since]


def _is_small(session: Session, owner: str) -> bool:
    """Return whether the schedules of the owner can all be read."""
    of_owner = force_index(select(Schedule.id), Schedule, _OWNER_INDEX)
    few = of_owner.where(Schedule.owner == owner).limit(MAX_SCANNED + 1).subquery()
    return (session.scalar(select(func.count()).select_from(few)) or 0) <= MAX_SCANNED


def _end_of_scan(session: Session, condition: Sequence[ColumnElement[bool]]) -> datetime | None:
    """Return ``next_run_at`` of the last row to read, or None if there are fewer."""
    statement = force_index(select(Schedule.next_run_at), Schedule, _DUE_INDEX).where(*condition)
    ordered = statement.order_by(*_DUE_ORDER)
    return session.scalar(ordered.offset(MAX_SCANNED - 1).limit(1))


def _until(end: Any) -> Sequence[ColumnElement[bool]]:
    return [] if end is None else [Schedule.next_run_at <= end]
