"""Pages and counts of schedules.

A list is read in the order of an index, from the key of the previous page on. Conditions that the
index does not serve are applied to the rows that it yields, MAX_SCANNED rows for one page at most.
A page whose filter matches rarely then ends before it is full, and its cursor continues the scan.

    order                                  index
    owner, name                            unique (owner, name)
    owner, name in a rare state            the state's partial index; MySQL: see below
    name, owner (a prefix, all owners)     (name, owner)
    next_run_at, id                        (next_run_at, id)

Some sets have an index, but not in the order of the list: the schedules of an owner by next_run_at,
and those in a rare state on MySQL. Up to MAX_SCANNED keys of such a set are read and sorted here.
A larger set is dense enough for the scan in the order of the list.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import ColumnElement, and_, case, func, literal, select
from sqlalchemy.orm import Session

from celery_dynbeat.common.states import State
from celery_dynbeat.db import statements
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import Hold, Schedule
from celery_dynbeat.db.statements import force_index, in_index_order
from celery_dynbeat.store.holds import OWNER_INDEX
from celery_dynbeat.store.schedules.due import DUE_INDEX
from celery_dynbeat.store.schedules.schedule_filters import (
    RARE_STATES,
    ScheduleFilter,
    has_owner,
    has_prefix,
    in_state,
    is_everything_held,
    is_in_force,
    others,
)

#: Rows that a page or a count reads at most.
MAX_SCANNED = 10_000
#: Held owners whose schedules one page reads.
_MAX_OWNERS = 50
_UNIQUE = "uq_dynbeat_schedule_owner_name"
_NAME_INDEX = "ix_dynbeat_schedule_name"
#: MySQL: the index that selects the schedules in a rare state.
_SELECTING = {
    State.PAUSED: "ix_dynbeat_schedule_unplanned",
    State.FINISHED: "ix_dynbeat_schedule_unplanned",
    State.QUARANTINED: "ix_dynbeat_schedule_quarantined",
    State.FAILING: "ix_dynbeat_schedule_failing",
}


class Order(StrEnum):
    """The order of a list, as its cursors name it."""

    OWNER = "name"
    NAME = "name of all owners"
    NEXT_RUN_AT = "next_run_at"


#: The attributes of a row that are its key in an order.
KEYS = {
    Order.OWNER: ("owner", "name"),
    Order.NAME: ("name", "owner"),
    Order.NEXT_RUN_AT: ("next_run_at", "id"),
}
Key: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ScheduleRows:
    """The schedules of a page, and the key after which the next one starts; None after the last."""

    rows: Sequence[Schedule]
    last_key: Key | None


@dataclass(frozen=True, slots=True)
class _Scan:
    """The index that a list is read from, with the conditions that are a range of it."""

    index: str
    served: Sequence[ColumnElement[bool]]
    filters: Sequence[ColumnElement[bool]]
    #: The only owner of the rows that the index yields.
    owner: str | None = None


@in_index_order
def page(
    session: Session, *, matching: ScheduleFilter, order: Order, after: Key | None, limit: int
) -> ScheduleRows:
    """Return up to ``limit`` matching schedules after the key ``after``, in ``order``.

    Schedules without ``next_run_at`` are not in a list by next_run_at.
    """
    in_effect = _in_effect(session, matching)
    if in_effect is None:
        return ScheduleRows([], None)
    matching = in_effect
    if matching.state == State.HELD:
        return _held_page(session, matching=matching, after=after, limit=limit)
    selected = _selected(session, matching, order)
    if selected is not None and _is_small(session, selected):
        return _sorted_page(session, selected, order=order, after=after, limit=limit)
    scan = _scan(session, matching, order)
    return _scanned_page(session, scan, order=order, after=after, limit=limit)


def _in_effect(session: Session, matching: ScheduleFilter) -> ScheduleFilter | None:
    """Return the filter, adapted to a hold of everything; None if nothing matches.

    With a hold of everything, each active schedule is held, and no schedule is overdue.
    """
    if matching.state not in {State.HELD, State.OVERDUE}:
        return matching
    if not is_everything_held(session, matching):
        return matching
    return None if matching.state == State.OVERDUE else replace(matching, state=State.ACTIVE)


@in_index_order
def lock_matching(
    session: Session, ids: Sequence[int], *, matching: ScheduleFilter
) -> Sequence[Schedule]:
    """Return the schedules in ``ids`` that match now, locked, in the order of their ids.

    ``page`` returned the ids before, at most a thousand. Rows that changed since then are compared
    as they are now. Waits for a transaction that has locked one of them.
    """
    in_effect = _in_effect(session, matching)
    if in_effect is None:
        return []
    conditions = [
        *has_owner(in_effect),
        *in_state(in_effect),
        *has_prefix(in_effect),
        *others(session, in_effect),
    ]
    statement = force_index(select(Schedule), Schedule, "PRIMARY")
    statement = statement.where(Schedule.id.in_(ids), *conditions)
    # In the order of the primary key: PostgreSQL would read all of another index, without a sort.
    statement = statement.order_by(Schedule.id).with_for_update()
    return session.scalars(statement.execution_options(populate_existing=True)).all()


def _scan(session: Session, matching: ScheduleFilter, order: Order) -> _Scan:
    """Return how to read the matching schedules in ``order``."""
    owner, prefix = has_owner(matching), has_prefix(matching)
    state, filters = list(in_state(matching)), list(others(session, matching))
    if order == Order.NEXT_RUN_AT:
        served: list[ColumnElement[bool]] = [Schedule.next_run_at.is_not(None)]
        if matching.state == State.OVERDUE:
            served.append(Schedule.next_run_at < matching.overdue_before)
        # Only active schedules are in this index.
        state = [] if matching.state == State.ACTIVE else state
        is_known = Schedule.held_at.is_(None)
        return _Scan(DUE_INDEX, served, [is_known, *state, *owner, *prefix, *filters])
    if order == Order.NAME:
        return _Scan(_NAME_INDEX, prefix, [*state, *filters])
    if matching.state in RARE_STATES and _has_partial_indexes(session):
        served = [*owner, state[0]]
        index = f"ix_dynbeat_schedule_{matching.state}"
        return _Scan(index, served, [*state[1:], *prefix, *filters], matching.owner)
    # The names of one owner are a range of the index. The names of several owners are not.
    if matching.owner is not None:
        return _Scan(_UNIQUE, [*owner, *prefix], [*state, *filters], matching.owner)
    return _Scan(_UNIQUE, owner, [*state, *prefix, *filters])


def _has_partial_indexes(session: Session) -> bool:
    return capabilities_of(session.get_bind(Schedule).dialect).has_partial_indexes


def _scanned_page(
    session: Session, scan: _Scan, *, order: Order, after: Key | None, limit: int
) -> ScheduleRows:
    served, filters = list(scan.served), list(scan.filters)
    if after is not None:
        served.append(_is_after(session, scan, order, after))
    end = _end_of_scan(session, scan, served, order) if filters else None
    if end is not None:
        filters.append(_is_until(session, scan, order, end))
    statement = force_index(select(Schedule), Schedule, scan.index).where(*served, *filters)
    ordered = statement.order_by(*_columns(scan, order))
    found = session.scalars(ordered.limit(limit + 1)).all()
    if len(found) > limit:
        return ScheduleRows(found[:limit], _key_of(found[limit - 1], order))
    return ScheduleRows(found, end)


def _end_of_scan(
    session: Session, scan: _Scan, served: Sequence[ColumnElement[bool]], order: Order
) -> Key | None:
    """Return the key of the last row that a page reads, or None if the list ends before it."""
    key = (getattr(Schedule, name) for name in KEYS[order])
    statement: Any = force_index(select(*key), Schedule, scan.index).where(*served)
    ordered = statement.order_by(*_columns(scan, order))
    last = session.execute(ordered.offset(MAX_SCANNED - 1).limit(1)).one_or_none()
    return None if last is None else _key_of(last, order)


def _columns(scan: _Scan, order: Order) -> tuple[Any, ...]:
    if order == Order.OWNER and scan.owner is not None:
        # With the owner in ORDER BY, MariaDB sorts all schedules of the owner.
        return (Schedule.name,)
    return _pair_of_columns(order)


def _pair_of_columns(order: Order) -> tuple[Any, Any]:
    first, second = (getattr(Schedule, name) for name in KEYS[order])
    return first, second


def _is_after(session: Session, scan: _Scan, order: Order, key: Key) -> ColumnElement[bool]:
    if order == Order.OWNER and scan.owner == key[0]:
        # With a condition on the owner, a comparison of both columns is not an index range.
        return and_(Schedule.name > key[1])
    capabilities = capabilities_of(session.get_bind(Schedule).dialect)
    return capabilities.row_after(_pair_of_columns(order), _pair(key))


def _is_until(session: Session, scan: _Scan, order: Order, key: Key) -> ColumnElement[bool]:
    if order == Order.OWNER and scan.owner == key[0]:
        return and_(Schedule.name <= key[1])
    capabilities = capabilities_of(session.get_bind(Schedule).dialect)
    return capabilities.row_until(_pair_of_columns(order), _pair(key))


def _pair(key: Key) -> tuple[Any, Any]:
    first, second = key
    return first, second


def _key_of(row: Any, order: Order) -> Key | None:
    key = tuple(getattr(row, name) for name in KEYS[order])
    # An instant beyond Python's calendar, which manual SQL wrote, is the end of the list.
    return None if None in key else key


def _selected(session: Session, matching: ScheduleFilter, order: Order) -> _Scan | None:
    """Return how to select a set that the list consists of, if no index has the list's order."""
    is_rare = matching.state in RARE_STATES
    if not matching.is_of_all:
        return _scan(session, matching, Order.OWNER) if order == Order.NEXT_RUN_AT else None
    if not is_rare or (order == Order.OWNER and _has_partial_indexes(session)):
        return None
    return _state_set(session, matching)


def _state_set(session: Session, matching: ScheduleFilter) -> _Scan:
    if _has_partial_indexes(session):
        return _scan(session, matching, Order.OWNER)
    assert matching.state is not None  # noqa: S101 - the callers check it
    condition, *state = in_state(matching)
    # The first column of the index of the unplanned schedules.
    served = [Schedule.enabled.in_([True, False])] if matching.state == State.FINISHED else []
    filters = [*state, *has_prefix(matching), *others(session, matching)]
    return _Scan(_SELECTING[matching.state], [*served, condition], filters)


def _is_small(session: Session, scan: _Scan) -> bool:
    few = force_index(select(Schedule.id), Schedule, scan.index).where(*scan.served)
    few = few.limit(MAX_SCANNED + 1)
    number = session.scalar(select(func.count()).select_from(few.subquery()))
    return (number or 0) <= MAX_SCANNED


def _sorted_page(
    session: Session, scan: _Scan, *, order: Order, after: Key | None, limit: int
) -> ScheduleRows:
    """Return a page of a small set, which is sorted here."""
    columns = [getattr(Schedule, name) for name in {*KEYS[order], "id"}]
    statement: Any = force_index(select(*columns), Schedule, scan.index)
    statement = statement.where(*scan.served, *scan.filters)
    if order == Order.NEXT_RUN_AT:
        statement = statement.where(Schedule.next_run_at.is_not(None), Schedule.held_at.is_(None))
    found = statements.read(session, statement)
    keys = sorted((tuple(getattr(row, name) for name in KEYS[order]), row.id) for row in found)
    chosen = [each for each in keys if after is None or each[0] > after][: limit + 1]
    ids = [row_id for _, row_id in chosen[:limit]]
    chosen_rows = session.scalars(select(Schedule).where(Schedule.id.in_(ids)))
    by_id = {row.id: row for row in chosen_rows}
    last = chosen[limit - 1][0] if len(chosen) > limit else None
    return ScheduleRows([by_id[row_id] for row_id in ids if row_id in by_id], last)


def _held_page(
    session: Session, *, matching: ScheduleFilter, after: Key | None, limit: int
) -> ScheduleRows:
    """Return a page of the schedules of held owners, by owner and name."""
    found: list[Schedule] = []
    held = _held_owners(session, matching, since=None if after is None else after[0])
    key = after
    for owner in held.owners:
        of_owner = replace(matching, owner=owner, state=State.ACTIVE)
        start = after if after is not None and after[0] == owner else None
        scan, room = _scan(session, of_owner, Order.OWNER), limit - len(found)
        part = _scanned_page(session, scan, order=Order.OWNER, after=start, limit=room)
        found += part.rows
        if part.last_key is not None:
            return ScheduleRows(found, part.last_key)
        key = (owner, found[-1].name if part.rows else "")
        if len(found) == limit:
            return ScheduleRows(found, key)
    return ScheduleRows(found, key if held.is_more else None)


class _HeldOwners(NamedTuple):
    """Owners with a hold in force, and whether there are more."""

    owners: Sequence[str]
    is_more: bool


def _held_owners(session: Session, matching: ScheduleFilter, *, since: str | None) -> _HeldOwners:
    """Return the first held owners from owner ``since`` on."""
    held: Any = force_index(select(Hold.owner), Hold, OWNER_INDEX)
    held = held.where(Hold.owner.is_not(None), is_in_force(matching))
    held = held.where(*has_owner(matching, Hold.owner))
    if since is not None:
        held = held.where(Hold.owner >= since)
    found = session.scalars(held.order_by(Hold.owner).limit(_MAX_OWNERS)).all()
    return _HeldOwners(found, is_more=len(found) == _MAX_OWNERS)


@in_index_order
def count(
    session: Session, *, matching: ScheduleFilter, limit: int | None = None
) -> tuple[int, bool]:
    """Return the number of matching schedules, and whether there can be more.

    At most ``limit`` + 1 schedules are read, by default MAX_SCANNED + 1. Of a rare state they lie
    anywhere in the table.
    """
    limit = MAX_SCANNED if limit is None else limit
    in_effect = _in_effect(session, matching)
    if in_effect is None:
        return 0, False
    matching = in_effect
    if matching.state == State.HELD:
        return _count_held(session, matching, limit)
    return _count(session, _counted(session, matching), limit)


def _count_held(session: Session, matching: ScheduleFilter, limit: int) -> tuple[int, bool]:
    """Count the schedules of the first held owners."""
    held, total = _held_owners(session, matching, since=None), 0
    for owner in held.owners:
        of_owner = replace(matching, owner=owner, state=State.ACTIVE)
        found, is_more = _count(session, _scan(session, of_owner, Order.OWNER), limit)
        total += found
        if is_more or total > limit:
            return min(total, limit), True
    return total, held.is_more


def _count(session: Session, scan: _Scan, limit: int) -> tuple[int, bool]:
    is_match = case((and_(*scan.filters), 1), else_=0) if scan.filters else literal(1)
    read: Any = force_index(select(is_match.label("is_match")), Schedule, scan.index)
    few = read.select_from(Schedule).where(*scan.served).limit(limit + 1).subquery()
    number, found = session.execute(select(func.count(), func.sum(few.c.is_match))).one()
    return min(int(found or 0), limit), number > limit


def _counted(session: Session, matching: ScheduleFilter) -> _Scan:
    """Return how to read the smallest set that contains the matching schedules."""
    if matching.is_of_all and matching.state in RARE_STATES:
        return _state_set(session, matching)
    if matching.is_of_all and matching.state == State.OVERDUE:
        return _scan(session, matching, Order.NEXT_RUN_AT)
    if matching.is_of_all and matching.name_prefix:
        return _scan(session, matching, Order.NAME)
    if matching.is_of_all and matching.state == State.ACTIVE:
        return _Scan(DUE_INDEX, [Schedule.next_run_at.is_not(None)], others(session, matching))
    return _scan(session, matching, Order.OWNER)
