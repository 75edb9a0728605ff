"""Pages and counts of schedules and runs: rows in the order of an index, with a bounded read.

A page starts after the key of the previous page's last row. Conditions that the index does not
serve are applied to the rows that it yields, MAX_SCANNED rows for one page at most. A page whose
filter matches rarely then ends before it is full, and its last key continues the scan.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import ColumnElement, and_, case, func, literal, or_, select
from sqlalchemy.orm import Session

from celery_dynbeat.common.filters import Order
from celery_dynbeat.common.infos import BoundedCount
from celery_dynbeat.db.models import Run, Schedule
from celery_dynbeat.db.statements import capabilities_in

#: Rows that a page or a count reads at most.
MAX_SCANNED = 10_000
Key: TypeAlias = tuple[Any, ...]


#: The attributes of a row that are its key in an order. Runs are listed from newest to oldest.
KEYS: Mapping[Order, tuple[str, ...]] = {
    Order.OWNER: ("owner", "name"),
    Order.NAME: ("name", "owner"),
    Order.NEXT_RUN_AT: ("next_run_at", "id"),
    Order.FIRE_TIME: ("fire_at", "id"),
    Order.RUN_ID: ("id",),
    Order.SCHEDULE: ("schedule_id", "id"),
}


class Position(NamedTuple):
    """The last row of a page: the order of the page, and the key of the row in this order."""

    order: Order
    key: Key


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a page, and the position before the next page; None after the last page."""

    rows: Sequence[Any]
    last: Position | None


@dataclass(frozen=True, slots=True)
class Scan:
    """How a list is read from an index, with the conditions that are a range of it (``served``).

    ``columns`` are those by which the rows are ordered: all or some of the key of ``order``.
    ``fixed`` are the columns of the index before them, which the conditions fix.
    """

    order: Order
    columns: tuple[Any, ...]
    served: Sequence[ColumnElement[bool]]
    filters: Sequence[ColumnElement[bool]]
    fixed: tuple[Any, ...] = ()

    @property
    def model(self) -> Any:
        """The class of the rows."""
        return self.columns[0].class_


def page(
    session: Session,
    scan: Scan,
    *,
    after: Position | None,
    limit: int,
    columns: Sequence[Any] | None = None,
) -> Rows:
    """Return up to ``limit`` rows after the position ``after``. ``columns=None`` means whole rows.

    It reads MAX_SCANNED rows at most, if the index does not serve all conditions.
    """
    served, filters = list(scan.served), list(scan.filters)
    if after is not None:
        served.append(_is_after(session, scan, after.key))
    end = _end_of_scan(session, scan, served) if filters else None
    if end is not None:
        filters.append(_is_until(session, scan, end))
    selected = select(scan.model) if columns is None else select(*columns)
    statement = in_order(session, selected, scan).where(*served, *filters).limit(limit + 1)
    found = session.scalars(statement) if columns is None else session.execute(statement)
    rows = found.all()
    if len(rows) > limit:
        rows, end = rows[:limit], key_of(rows[limit - 1], scan.order)
    return Rows(rows, None if end is None else Position(scan.order, end))


def sorted_page(
    session: Session,
    model: Any,
    rows: Iterable[Any],
    *,
    order: Order,
    after: Position | None,
    limit: int,
) -> Rows:
    """Return a page of the few ``rows`` with id and key, which are sorted here."""
    ids_by_key: dict[Any, Any] = {key_of(row, order): row.id for row in rows}
    is_newest_first = model is Run
    keys = sorted(ids_by_key, reverse=is_newest_first)
    if after is not None:
        keys = [key for key in keys if (key < after.key if is_newest_first else key > after.key)]
    chosen = load(session, model, [ids_by_key[key] for key in keys[:limit]])
    return Rows(chosen, Position(order, keys[limit - 1]) if len(keys) > limit else None)


def load(session: Session, model: Any, ids: Sequence[Any]) -> Sequence[Any]:
    """Return the rows in the order of ``ids``. Rows that were just deleted are left out."""
    found = session.scalars(select(model).where(model.id.in_(ids))) if ids else ()
    by_id = {row.id: row for row in found}
    return [by_id[row_id] for row_id in ids if row_id in by_id]


def _end_of_scan(session: Session, scan: Scan, served: Sequence[ColumnElement[bool]]) -> Key | None:
    """Return the key of the last row that a page reads, or None if the list ends before it."""
    key = (getattr(scan.model, name) for name in KEYS[scan.order])
    statement = in_order(session, select(*key), scan).where(*served)
    row = session.execute(statement.offset(MAX_SCANNED - 1).limit(1)).one_or_none()
    return None if row is None else key_of(row, scan.order)


def key_of(row: Any, order: Order) -> Key | None:
    """Return the key of a row. The schedule 0 of a run means that the schedule was deleted."""
    key = tuple(getattr(row, name) for name in KEYS[order])
    if order == Order.SCHEDULE:
        return key[0] or 0, key[1]
    # An instant beyond Python's calendar, which manual SQL wrote, is the end of the list.
    return None if None in key else key


def in_order(session: Session, statement: Any, scan: Scan) -> Any:
    """Return ``statement`` in the order of the index of the scan."""
    has_fixed = capabilities_in(session).orders_by_fixed_columns
    order = (*scan.fixed, *scan.columns) if has_fixed else scan.columns
    is_newest_first = scan.model is Run
    return statement.order_by(*(each.desc() if is_newest_first else each for each in order))


def _is_after(session: Session, scan: Scan, key: Key) -> ColumnElement[bool]:
    columns, values = _compared(scan, key)
    if scan.model is Schedule:
        capabilities = capabilities_in(session)
        pair = len(columns) > 1
        return capabilities.row_after(columns, values) if pair else and_(columns[0] > values[0])
    if len(columns) == 1:
        return and_(columns[0] < values[0])
    # As a range of the first column.
    (first, second), (first_key, second_key) = columns, values
    return and_(first <= first_key, or_(first < first_key, second < second_key))


def _is_until(session: Session, scan: Scan, key: Key) -> ColumnElement[bool]:
    columns, values = _compared(scan, key)
    if scan.model is Schedule:
        capabilities = capabilities_in(session)
        pair = len(columns) > 1
        return capabilities.row_until(columns, values) if pair else and_(columns[0] <= values[0])
    if len(columns) == 1:
        return and_(columns[0] >= values[0])
    (first, second), (first_key, second_key) = columns, values
    return and_(first >= first_key, or_(first > first_key, second >= second_key))


def _compared(scan: Scan, key: Key) -> tuple[Any, Any]:
    """Return the columns of the scan, and their values in ``key``."""
    values = dict(zip(KEYS[scan.order], key, strict=True))
    return scan.columns, tuple(values[column.key] for column in scan.columns)


def count(session: Session, scan: Scan, *, limit: int) -> BoundedCount:
    """Return the number of matching rows among ``limit`` + 1.

    Of runs, the newest are read.
    """
    is_match = case((and_(*scan.filters), 1), else_=0) if scan.filters else literal(1)
    read: Any = select(is_match.label("is_match"))
    if scan.model is Run:
        read = in_order(session, read, scan)
    few = read.select_from(scan.model).where(*scan.served).limit(limit + 1).subquery()
    number, found = session.execute(select(func.count(), func.sum(few.c.is_match))).one()
    return BoundedCount(count=int(found or 0), exact=number <= limit)
