"""When schedules run next: rows and counts by ``next_run_at``, in the order of the due index.

The schedules of an owner have no such index. Up to MAX_SCANNED of them are read by owner. An owner
with more is dense enough for the due index.

A sample of the schedules is drawn by a hash of their ids, if so many can be counted. If not, it is
drawn from intervals of ids. An interval has one matching schedule on average. Ids can have large
gaps, so intervals are drawn from those parts of the ids that have schedules at all.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from random import Random
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    and_,
    bindparam,
    case,
    func,
    select,
    true,
)
from sqlalchemy.orm import Session

from celery_dynbeat.common.text import end_of_group, is_group
from celery_dynbeat.db import statements
from celery_dynbeat.db.dialects import Capabilities, capabilities_of
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.db.statements import force_index, in_index_order
from celery_dynbeat.store.owners import is_of
from celery_dynbeat.store.schedules.schedule_filters import (
    ScheduleFilter,
    has_owner,
    others,
)
from celery_dynbeat.store.span_reads import Span, read_spans, within_span

#: Rows of schedules that a query reads for a filter that its index does not serve.
MAX_SCANNED = 10_000
#: Entries of the due index that are counted for a sample.
MAX_COUNTED = 100_000
#: The prime of the hash of a sample.
_PRIME = 2**31 - 1
#: Parts into which all ids are divided to find those with schedules, and how many times.
_PARTS, _DIVISIONS = 500, 3
#: Intervals that are drawn to learn the mean distance of two matching schedules, the part of the
#: ids that each has, and the schedules that they must have.
_PILOTS, _PILOT_PARTS, _MIN_FOUND = 50, 10_000, 5
#: Rows that are read of all intervals, and of one.
_MAX_READ, _MAX_READ_OF_INTERVAL = 20_000, 1_000
_DUE_INDEX = "ix_dynbeat_schedule_due"
_DUE_ORDER = (Schedule.next_run_at, Schedule.id)
_OWNER_INDEX = "uq_dynbeat_schedule_owner_name"
#: What the fire times of a schedule depend on.
_COLUMNS = tuple(
    getattr(Schedule, name)
    for name in (
        *("id", "owner", "name", "task", "tags", "trigger_kind", "trigger_spec", "timezone"),
        *("quiet_hours", "anchor_at", "start_at", "end_at", "max_runs", "run_count", "catch_up"),
        *("catch_up_window", "overlap", "max_run_time", "jitter", "created_at", "next_fire_at"),
        *("next_run_at", "held_at", "skipped_until", "last_run_at"),
    )
)


class PlannedRows(NamedTuple):
    """Schedules that run next in a span. ``is_more`` is true if there can be others."""

    rows: Sequence[statements.Row]
    is_more: bool


class PlannedPage(NamedTuple):
    """Schedules that run next, and the key after which the next page starts, if there is one."""

    rows: Sequence[statements.Row]
    last_key: tuple[datetime, int] | None


class PlannedCounts(NamedTuple):
    """The number of schedules that run next in a span. With ``is_more``, it is a lower bound."""

    planned: int = 0
    is_more: bool = False


class PlannedSample(NamedTuple):
    """The schedules of each draw; ``frame`` is the number of possible draws.

    Each possible draw had the same probability. A draw can have no schedule, or several.
    """

    draws: Sequence[Sequence[statements.Row]]
    frame: int


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

    Without ``since`` all that are due before ``until``.
    """
    condition = _in_span(since, until)
    if matching.owner is not None and _is_small(session, matching.owner):
        return _of_small_owner(session, matching, condition, limit)
    filters = [*has_owner(matching), *others(session, matching)]
    end = _end_of_scan(session, condition) if filters else None
    read = force_index(select(*_COLUMNS), Schedule, _DUE_INDEX)
    ordered = read.where(*condition, *_until(end), *filters).order_by(*_DUE_ORDER).limit(limit + 1)
    found = statements.read(session, ordered)
    return PlannedRows(found[:limit], end is not None or len(found) > limit)


@in_index_order
def page(
    session: Session,
    *,
    matching: ScheduleFilter,
    until: datetime,
    after: tuple[datetime, int] | None,
    limit: int,
    more: Sequence[str] = (),
) -> PlannedPage:
    """Return schedules with next_run_at < until after the key ``after``, earliest first.

    Up to ``limit`` schedules are read, and the schedules that match are returned. The first page of
    an owner with up to MAX_SCANNED schedules has all of them. ``more`` names further columns.
    """
    condition = _in_span(None, until)
    if matching.owner is not None and _is_small(session, matching.owner):
        found = _of_small_owner(session, matching, condition, MAX_SCANNED, more)
        return PlannedPage(found.rows, None)
    capabilities = capabilities_of(session.get_bind(Schedule).dialect)
    if after is not None:
        condition.append(capabilities.row_after(_DUE_ORDER, after))
    keys: Any = force_index(select(*_DUE_ORDER), Schedule, _DUE_INDEX).where(*condition)
    last = session.execute(keys.order_by(*_DUE_ORDER).offset(limit - 1).limit(1)).first()
    key = None if last is None else (last[0], last[1])
    if key is not None:
        # A filter must not make the page read further.
        condition.append(capabilities.row_until(_DUE_ORDER, key))
    condition += [*has_owner(matching), *others(session, matching)]
    read = force_index(select(*_COLUMNS, *_named(more)), Schedule, _DUE_INDEX)
    return PlannedPage(statements.read(session, read.where(*condition).order_by(*_DUE_ORDER)), key)


def _named(columns: Sequence[str]) -> Sequence[Any]:
    return [getattr(Schedule, name) for name in columns]


@in_index_order
def has_more_than(
    session: Session, *, matching: ScheduleFilter, until: datetime, limit: int
) -> bool:
    """Return whether the pages of ``page`` read more than ``limit`` schedules."""
    if matching.owner is not None and _is_small(session, matching.owner):
        return False
    keys = force_index(select(Schedule.id), Schedule, _DUE_INDEX).where(*_in_span(None, until))
    return session.scalar(keys.order_by(*_DUE_ORDER).offset(limit).limit(1)) is not None


def _of_small_owner(
    session: Session,
    matching: ScheduleFilter,
    condition: Sequence[ColumnElement[bool]],
    limit: int,
    more: Sequence[str] = (),
) -> PlannedRows:
    # Sorted here: for an ORDER BY, PostgreSQL would read the due index of all owners.
    keys = sorted((row.next_run_at, row.id) for row in _keys_of(session, matching, condition))
    ids = [row_id for _, row_id in keys[:limit]]
    chosen = select(*_COLUMNS, *_named(more)).where(Schedule.id.in_(ids))
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
    """Return whether the schedules of the owner or the group can all be read."""
    of_owner = force_index(select(Schedule.id), Schedule, _OWNER_INDEX)
    few = of_owner.where(is_of(Schedule.owner, owner)).limit(MAX_SCANNED + 1).subquery()
    return (session.scalar(select(func.count()).select_from(few)) or 0) <= MAX_SCANNED


def _end_of_scan(session: Session, condition: Sequence[ColumnElement[bool]]) -> datetime | None:
    """Return ``next_run_at`` of the last row to read, or None if there are fewer."""
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
    query = _PlannedCounts(*_arguments_of(session, matching))
    values = {**_values_of(matching), "row_limit": limit}
    found = {
        row.number: PlannedCounts(int(row.planned or 0), row.rows_read >= limit)
        for row in read_spans(session, query, spans, key=Schedule.next_run_at, values=values)
    }
    return [found.get(number, PlannedCounts()) for number in range(len(spans))]


@dataclass(frozen=True, slots=True)
class _FilteredQuery:
    """A SELECT of the schedules that match a filter."""

    of_owner: bool
    of_group: bool
    of_task: bool
    tag: str | None
    capabilities: Capabilities

    def conditions(self) -> Sequence[ColumnElement[bool]]:
        """Return the conditions of the filter, with parameters."""
        found = []
        owner, end = (bindparam(name, type_=Schedule.owner.type) for name in ("owner", "owner_end"))
        if self.of_group:
            found.append(and_(Schedule.owner >= owner, Schedule.owner < end))
        elif self.of_owner:
            found.append(and_(Schedule.owner == owner))
        if self.of_task:
            found.append(and_(Schedule.task == bindparam("task", type_=Schedule.task.type)))
        if self.tag is not None:
            found.append(self.capabilities.has_tag(Schedule.tags, self.tag))
        return found


def _arguments_of(
    session: Session, matching: ScheduleFilter
) -> tuple[bool, bool, bool, str | None, Capabilities]:
    capabilities = capabilities_of(session.get_bind(Schedule).dialect)
    owner = matching.owner
    of_group = owner is not None and is_group(owner)
    return owner is not None, of_group, matching.task is not None, matching.tag, capabilities


def _values_of(matching: ScheduleFilter) -> dict[str, Any]:
    """Return the values of the parameters of the conditions."""
    owner = matching.owner
    end = end_of_group(owner) if owner is not None and is_group(owner) else None
    return {"owner": owner, "owner_end": end, "task": matching.task}


class _PlannedCounts(_FilteredQuery):
    """The SELECT that counts the schedules of a span. Only a filter reads more than the index."""

    def __call__(self, number: Any, start: Any, end: Any) -> Select[Any]:
        conditions = self.conditions()
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


@in_index_order
def sample(
    session: Session,
    *,
    matching: ScheduleFilter,
    until: datetime,
    size: int,
    rng: Random,
    more: Sequence[str] = (),
) -> PlannedSample | None:
    """Draw about ``size`` of the schedules with next_run_at < until, in any order.

    ``more`` names further columns. None if too few schedules match for an estimate.
    """
    condition = _in_span(None, until)
    if matching.owner is not None and _is_small(session, matching.owner):
        keys = [row.id for row in _keys_of(session, matching, condition)]
        chosen = rng.sample(keys, min(size, len(keys)))
        return _sample_of(session, [[row_id] for row_id in chosen], len(keys), more)
    filters = [*has_owner(matching), *others(session, matching)]
    due = force_index(select(Schedule.id), Schedule, _DUE_INDEX).where(*condition)
    most = MAX_SCANNED if filters else MAX_COUNTED
    first = due.add_columns(and_(true(), *filters).label("is_match")).order_by(*_DUE_ORDER)
    counted = first.limit(most + 1).subquery()
    matches = func.sum(case((counted.c.is_match, 1), else_=0))
    read, total = session.execute(select(func.count(), matches).select_from(counted)).one()
    if read > most:
        return _sample_intervals(session, matching, until, size, rng, more=more)
    hashed = due.where(*filters, _is_chosen(size / max(total, 1), rng)).order_by(*_DUE_ORDER)
    ids = session.scalars(hashed).all()
    return _sample_of(session, [[row_id] for row_id in ids], int(total or 0), more)


def _is_chosen(share: float, rng: Random) -> ColumnElement[bool]:
    """Return a condition that chooses about this share of the schedules, each two independently."""
    if share >= 1:
        return true()
    factor, summand = rng.randrange(1, _PRIME), rng.randrange(_PRIME)
    hashed = (Schedule.id % _PRIME * factor + summand) % _PRIME
    return hashed < round(share * _PRIME)


def _sample_of(
    session: Session, draws: Sequence[Sequence[int]], frame: int, more: Sequence[str]
) -> PlannedSample:
    ids = [row_id for each in draws for row_id in each]
    chosen = select(*_COLUMNS, *_named(more)).where(Schedule.id.in_(ids))
    found = {row.id: row for row in statements.read(session, chosen)}
    return PlannedSample([[found[key] for key in each if key in found] for each in draws], frame)


def _sample_intervals(
    session: Session,
    matching: ScheduleFilter,
    until: datetime,
    size: int,
    rng: Random,
    *,
    more: Sequence[str],
) -> PlannedSample | None:
    parts = _parts_with_schedules(session)
    length = sum(end - start for start, end in parts)
    query = _IntervalQuery(*_arguments_of(session, matching))
    values = {**_values_of(matching), "until": until}
    values["row_limit"] = _MAX_READ_OF_INTERVAL

    def read(count: int, width: int) -> Sequence[Sequence[Any]]:
        found: list[list[Any]] = [[] for _ in range(count)]
        spans = [*_intervals(parts, length, width, count, rng)]
        for row in read_spans(session, query, spans, key=Schedule.id, values=values):
            found[row.number].append(row)
        return found

    width = max(1, length // _PILOT_PARTS)
    pilots = [row for each in read(_PILOTS, width) for row in each]
    matches = sum(row.is_match for row in pilots)
    if matches < _MIN_FOUND:
        return None
    # Chosen by other draws than the sample, so the width adds no bias.
    width = max(1, round(width * _PILOTS / matches))
    drawn = read(min(size, _MAX_READ * matches // len(pilots), length // width), width)
    if not drawn or max(map(len, drawn)) >= _MAX_READ_OF_INTERVAL:
        return None
    ids = [[row.id for row in each if row.is_match] for each in drawn]
    return _sample_of(session, ids, -(-length // width), more)


def _parts_with_schedules(session: Session) -> Sequence[Span]:
    """Return spans of ids that contain all schedules, and no large gap."""
    first, last = session.execute(select(func.min(Schedule.id), func.max(Schedule.id))).one()
    parts = [Span(first, last + 1)]
    for _ in range(_DIVISIONS):
        width = -(-sum(end - start for start, end in parts) // _PARTS)
        divided = [
            Span(start, min(start + width, part.end))
            for part in parts
            for start in range(part.start, part.end, width)
        ]
        found = read_spans(session, _first_id, divided, key=Schedule.id, values={})
        parts = [divided[number] for number in sorted({row.number for row in found})]
        if 2 * len(parts) > len(divided):
            break
    return parts


def _intervals(
    parts: Sequence[Span], length: int, width: int, count: int, rng: Random
) -> Iterator[Span]:
    """Draw intervals of ``width`` ids of the joined parts, one of each of ``count`` equal shares.

    An interval across two parts includes the gap between them, which has no rows.
    """
    ends = [*accumulate(end - start for start, end in parts)]

    def id_at(offset: int) -> int:
        part = bisect_right(ends, offset)
        return int(parts[part].end - (ends[part] - offset))

    frame = -(-length // width)
    for share in range(count):
        first = int((share + rng.random()) * frame / count) * width
        yield Span(id_at(first), id_at(min(first + width, length) - 1) + 1)


def _first_id(number: Any, start: Any, end: Any) -> Select[Any]:
    ids = force_index(select(Schedule.id), Schedule, "PRIMARY")
    first = ids.where(Schedule.id >= start, Schedule.id < end).order_by(Schedule.id).limit(1)
    return select(number.label("number")).select_from(within_span(first, start).subquery())


class _IntervalQuery(_FilteredQuery):
    """The SELECT of the schedules of an interval of ids; ``is_match`` is 1 or 0."""

    def __call__(self, number: Any, start: Any, end: Any) -> Select[Any]:
        until = bindparam("until", type_=Schedule.next_run_at.type)
        is_match = and_(Schedule.next_run_at < until, *self.conditions())
        columns = (Schedule.id, case((is_match, 1), else_=0).label("is_match"))
        statement = force_index(select(*columns), Schedule, "PRIMARY")
        inside = statement.where(Schedule.id >= start, Schedule.id < end).order_by(Schedule.id)
        limited = inside.limit(bindparam("row_limit", type_=Integer))
        read = within_span(limited, start).subquery()
        return select(number.label("number"), read.c.id, read.c.is_match)
