"""Pages and counts of the history of runs.

``run_filters`` says which index a history is read from. A page reads MAX_SCANNED rows at most. A
page whose filter rarely matches therefore ends before it is full, and its cursor continues the
scan.

Unfinished runs are rare, and an index selects them, but not in the order of a history. Up to
MAX_SCANNED of them are read and sorted here. If there are more, a page of all owners has the order
of that index, by schedule; a page of one owner reads the history of the owner.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, and_, case, func, literal, or_, select
from sqlalchemy.orm import Session

from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import Run
from celery_dynbeat.db.statements import force_index, in_index_order
from celery_dynbeat.store.runs.run_filters import (
    KEYS,
    RunFilter,
    RunOrder,
    Scan,
    batch_scan,
    history_scan,
    unfinished_scan,
)

#: Rows that a page or a count reads at most of a history with a filter that no index serves.
MAX_SCANNED = 10_000
#: The columns in the keys of all orders.
_KEY_COLUMNS = (Run.id, Run.scheduled_for, Run.schedule_id)
#: This is greater than the id of any run.
_LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"
Key: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Position:
    """The last run of a page: the order of the page, and the key of the run in this order."""

    order: RunOrder
    key: Key


@dataclass(frozen=True, slots=True)
class RunRows:
    """The runs of a page, and the position before the next page; None after the last page."""

    rows: Sequence[Any]
    last: Position | None


#: The position between the runs with a schedule and those whose schedule was deleted.
_BEFORE_ORPHANS = Position(RunOrder.SCHEDULE, (0, _LAST_ID))


@in_index_order
def page(session: Session, *, matching: RunFilter, after: Position | None, limit: int) -> RunRows:
    """Return up to ``limit`` matching runs after the position ``after``, newest first."""
    is_by_schedule = after is not None and after.order == RunOrder.SCHEDULE
    if matching.is_unfinished and not is_by_schedule:
        if _has_few_unfinished(session, matching):
            return _sorted_page(session, matching, after=after, limit=limit)
        is_by_schedule = matching.owner is None and after is None
    if not is_by_schedule:
        return _scanned_page(session, history_scan(session, matching), after=after, limit=limit)
    found = unfinished_keys(session, matching=matching, after=after, limit=limit)
    return RunRows(_load(session, [row.id for row in found.rows]), found.last)


#: Characters of an error that ``newest`` reads.
MAX_ERROR = 200


@in_index_order
def newest(session: Session, *, matching: RunFilter) -> RunRows:
    """Return what statistics need of the matching runs, the newest first.

    At most MAX_SCANNED runs are read. Each row has ``id``, ``schedule_id``, ``owner``, ``name``,
    ``task``, ``status``, ``attempt``, ``origin``, ``rerun_of``, ``scheduled_for``, ``sent_at``,
    ``ready_at`` and the start of ``error``.
    """
    error = func.substr(Run.error, 1, MAX_ERROR, type_=Run.error.type).label("error")
    of_schedule = (Run.owner, Run.name, Run.task, Run.status, Run.attempt, Run.origin)
    columns = (*_KEY_COLUMNS, *of_schedule, Run.rerun_of, Run.sent_at, Run.ready_at, error)
    scan = history_scan(session, matching)
    return _scanned_page(session, scan, after=None, limit=MAX_SCANNED, columns=columns)


@in_index_order
def unfinished_keys(
    session: Session, *, matching: RunFilter, after: Position | None, limit: int
) -> RunRows:
    """Return id, scheduled_for and schedule_id of up to ``limit`` unfinished runs that match.

    They are ordered by schedule, and newest first in each. Runs of deleted schedules come last. The
    filter of a batch has a status.
    """
    if matching.batch_id is not None:
        scan = batch_scan(matching, batch_id=matching.batch_id)
        return _scanned_page(session, scan, after=after, limit=limit, columns=_KEY_COLUMNS)
    rows: Sequence[Any] = ()
    # 0 means that the runs with a schedule are in the previous pages.
    if after is None or after.key[0]:
        scan = unfinished_scan(matching)
        found = _scanned_page(session, scan, after=after, limit=limit, columns=_KEY_COLUMNS)
        if found.last is not None or matching.schedule_id is not None:
            return found
        rows, after = found.rows, None
    if len(rows) == limit:
        return RunRows(rows, _BEFORE_ORPHANS)
    scan, rest = unfinished_scan(matching, has_schedule=False), limit - len(rows)
    found = _scanned_page(session, scan, after=after, limit=rest, columns=_KEY_COLUMNS)
    return RunRows([*rows, *found.rows], found.last)


def _has_few_unfinished(session: Session, matching: RunFilter) -> bool:
    indexed = replace(unfinished_scan(matching), served=_unfinished(matching), filters=())
    more = _in_order(session, select(Run.id), indexed).where(*indexed.served)
    return session.scalar(more.offset(MAX_SCANNED).limit(1)) is None


def _unfinished(matching: RunFilter) -> Sequence[ColumnElement[bool]]:
    """Return the conditions of all unfinished runs, with a schedule or without."""
    of_schedule = [] if matching.schedule_id is None else [Run.schedule_id == matching.schedule_id]
    return [Run.finished_at.is_(None), *of_schedule]


def _sorted_page(
    session: Session, matching: RunFilter, *, after: Position | None, limit: int
) -> RunRows:
    """Return a page of the unfinished runs, which are few and sorted here."""
    keys: list[Key] = []
    for scan in _unfinished_scans(matching):
        statement = _in_order(session, select(*_KEY_COLUMNS), scan).where(
            *scan.served, *scan.filters
        )
        keys += [_key_of(row, matching.order) for row in session.execute(statement)]
    chosen = [key for key in sorted(keys, reverse=True) if after is None or key < after.key]
    # The last part of each key is the id.
    rows = _load(session, [key[-1] for key in chosen[:limit]])
    is_last = len(chosen) <= limit
    return RunRows(rows, None if is_last else Position(matching.order, chosen[limit - 1]))


def _unfinished_scans(matching: RunFilter) -> Sequence[Scan]:
    """Return how to read all unfinished runs that match, in any order."""
    if matching.schedule_id is not None:
        return [unfinished_scan(matching)]
    return [unfinished_scan(matching), unfinished_scan(matching, has_schedule=False)]


def _load(session: Session, ids: Sequence[str]) -> Sequence[Run]:
    """Return the runs in the order of ``ids``. Runs that were just deleted are left out."""
    found = session.scalars(select(Run).where(Run.id.in_(ids))) if ids else ()
    by_id = {run.id: run for run in found}
    return [by_id[run_id] for run_id in ids if run_id in by_id]


def _scanned_page(
    session: Session,
    scan: Scan,
    *,
    after: Position | None,
    limit: int,
    columns: Sequence[Any] | None = None,
) -> RunRows:
    """Return a page in the order of the index. ``columns=None`` means whole runs.

    It reads MAX_SCANNED runs at most, if the index does not serve all conditions.
    """
    served, filters = list(scan.served), list(scan.filters)
    if after is not None:
        served.append(_before(scan, after.key))
    end = _end_of_scan(session, scan, served) if filters else None
    if end is not None:
        filters.append(_from(scan, end))
    selected = select(Run) if columns is None else select(*columns)
    statement = _in_order(session, selected, scan).where(*served, *filters).limit(limit + 1)
    found = session.scalars(statement) if columns is None else session.execute(statement)
    rows = found.all()
    if len(rows) > limit:
        return RunRows(rows[:limit], Position(scan.order, _key_of(rows[limit - 1], scan.order)))
    return RunRows(rows, None if end is None else Position(scan.order, end))


def _end_of_scan(session: Session, scan: Scan, served: Sequence[ColumnElement[bool]]) -> Key | None:
    """Return the key of the last row that a page reads, or None if the history ends before it."""
    statement = _in_order(session, select(*_KEY_COLUMNS), scan).where(*served)
    row = session.execute(statement.offset(MAX_SCANNED - 1).limit(1)).one_or_none()
    return None if row is None else _key_of(row, scan.order)


def _key_of(row: Any, order: RunOrder) -> Key:
    # 0 means that the schedule was deleted.
    return tuple(getattr(row, name) or 0 for name in KEYS[order])


def _in_order(session: Session, statement: Any, scan: Scan) -> Any:
    """Return ``statement`` from newest to oldest, by the index of the scan."""
    has_fixed = capabilities_of(session.get_bind(Run).dialect).orders_by_fixed_columns
    order = (*scan.fixed, *scan.columns) if has_fixed else scan.columns
    statement = force_index(statement, Run, scan.index)
    return statement.order_by(*(column.desc() for column in order))


def _before(scan: Scan, key: Key) -> ColumnElement[bool]:
    """Return the condition that a row comes before ``key``, as a range of the first column."""
    columns, values = _compared(scan, key)
    if len(columns) == 1:
        return and_(columns[0] < values[0])
    (first, second), (first_key, second_key) = columns, values
    return and_(first <= first_key, or_(first < first_key, second < second_key))


def _from(scan: Scan, key: Key) -> ColumnElement[bool]:
    """Return the condition that a row is at ``key`` or comes after it."""
    columns, values = _compared(scan, key)
    if len(columns) == 1:
        return and_(columns[0] >= values[0])
    (first, second), (first_key, second_key) = columns, values
    return and_(first >= first_key, or_(first > first_key, second >= second_key))


def _compared(scan: Scan, key: Key) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the columns of the scan, and their values in ``key``."""
    values = dict(zip(KEYS[scan.order], key, strict=True))
    return scan.columns, [values[column.key] for column in scan.columns]


@in_index_order
def count(session: Session, *, matching: RunFilter) -> tuple[int, bool]:
    """Return the number of matching runs, and whether there can be more.

    At most MAX_SCANNED + 1 runs of the history are read.
    """
    of_all = matching.owner is None or matching.schedule_id is not None
    if matching.is_unfinished and (of_all or _has_few_unfinished(session, matching)):
        counts = [_count(session, scan) for scan in _unfinished_scans(matching)]
    else:
        counts = [_count(session, history_scan(session, matching))]
    total, is_more = sum(found for found, _ in counts), any(more for _, more in counts)
    return min(total, MAX_SCANNED), is_more or total > MAX_SCANNED


def _count(session: Session, scan: Scan) -> tuple[int, bool]:
    """Return the number of matching runs, and whether there can be more."""
    is_match = case((and_(*scan.filters), 1), else_=0) if scan.filters else literal(1)
    read = _in_order(session, select(is_match.label("is_match")), scan).select_from(Run)
    few = read.where(*scan.served).limit(MAX_SCANNED + 1).subquery()
    number, found = session.execute(select(func.count(), func.sum(few.c.is_match))).one()
    return int(found or 0), number > MAX_SCANNED


@in_index_order
def count_batch(session: Session, *, batch_id: str, owner: str | None) -> Mapping[str, int]:
    """Return the number of runs of a batch by status. ``owner=None`` means all owners."""
    scan = batch_scan(RunFilter(owner=owner), batch_id=batch_id)
    counted = force_index(select(Run.status, func.count()), Run, scan.index)
    counted = counted.where(*scan.served, *scan.filters).group_by(Run.status)
    return {row[0]: row[1] for row in session.execute(counted.order_by(Run.status))}
