"""Pages and counts of schedules.

A list is read in the order of an index. ``scans`` says how many rows a page reads.

    order                                  index
    owner, name                            unique (owner, name)
    owner, name in a rare state            the state's partial index; MySQL: see below
    name, owner (a prefix, all owners)     (name, owner)
    next_run_at, id                        (next_run_at, id)

Some sets have an index, but not in the order of the list: the schedules of an owner by next_run_at,
and those in a rare state on MySQL. Up to MAX_SCANNED keys of such a set are read and sorted here.
A larger set is dense enough for the scan in the order of the list.

When schedules run next is read in the order of the due index. The schedules of an owner have no
such index. Up to MAX_SCANNED of them are read by owner. An owner with more is dense enough for the
due index.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Select,
    Text,
    and_,
    case,
    exists,
    func,
    not_,
    or_,
    select,
    true,
)
from sqlalchemy.orm import Session

from celery_dynbeat.common.filters import Order, ScheduleFilter
from celery_dynbeat.common.infos import ZERO, BoundedCount
from celery_dynbeat.common.states import State
from celery_dynbeat.db import statements
from celery_dynbeat.db.models import Hold, Schedule
from celery_dynbeat.db.statements import capabilities_in, force_index
from celery_dynbeat.db.types import as_text
from celery_dynbeat.store import scans
from celery_dynbeat.store.holds import is_everything_held
from celery_dynbeat.store.owners import PLAN_COLUMNS, has_text
from celery_dynbeat.store.scans import KEYS, Position, Rows, Scan
from celery_dynbeat.triggers.once import Once

#: Held owners whose schedules one page reads.
_MAX_OWNERS = 50
_FIRST_SURROGATE, _AFTER_SURROGATES = 0xD800, 0xE000
#: The states of few schedules: each has an index.
RARE_STATES = frozenset({State.PAUSED, State.FINISHED, State.QUARANTINED, State.FAILING})


_ACTIVE = (
    and_(Schedule.enabled),
    Schedule.finished_at.is_(None),
    Schedule.error.is_(None),
)
#: The conditions of each state. The conditions of a rare state imply the condition of its index.
_CONDITIONS: Mapping[str, Sequence[ColumnElement[bool]]] = {
    State.ACTIVE: _ACTIVE,
    State.HELD: _ACTIVE,
    State.PAUSED: (
        not_(Schedule.enabled),
        Schedule.finished_at.is_(None),
        Schedule.error.is_(None),
    ),
    State.FINISHED: (Schedule.finished_at.is_not(None), Schedule.error.is_(None)),
    State.QUARANTINED: (Schedule.error.is_not(None),),
    State.FAILING: (Schedule.failing_since.is_not(None),),
    State.OVERDUE: (Schedule.next_run_at.is_not(None), Schedule.held_at.is_(None)),
}


def page(
    session: Session, *, matching: ScheduleFilter, order: Order, after: Position | None, limit: int
) -> Rows:
    """Return up to ``limit`` matching schedules after the position ``after``, in ``order``.

    Schedules without ``next_run_at`` are not in a list by next_run_at.
    """
    in_effect = _in_effect(session, matching)
    if in_effect is None:
        return Rows([], None)
    matching = in_effect
    if matching.state == State.HELD:
        return _held_page(session, matching=matching, after=after, limit=limit)
    selected = _selected(session, matching, order)
    if selected is not None and _is_small(session, selected):
        return _sorted_page(session, selected, order=order, after=after, limit=limit)
    scan = _scan(session, matching, order)
    return _read(session, scan, owner=matching.owner, after=after, limit=limit)


def _in_effect(session: Session, matching: ScheduleFilter) -> ScheduleFilter | None:
    """Return the filter, adapted to a hold of everything; None if nothing matches.

    With a hold of everything, each active schedule is held, and no schedule is overdue.
    """
    if matching.state not in {State.HELD, State.OVERDUE}:
        return matching
    if not is_everything_held(session, now=matching.now):
        return matching
    return None if matching.state == State.OVERDUE else replace(matching, state=State.ACTIVE)


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
    # InnoDB locks each row that it scans.
    statement = force_index(select(Schedule), Schedule, "PRIMARY")
    statement = statement.where(Schedule.id.in_(ids), *conditions)
    # In the order of the primary key: PostgreSQL would read all of another index, without a sort.
    statement = statement.order_by(Schedule.id).with_for_update()
    return session.scalars(statement.execution_options(populate_existing=True)).all()


def _scan(session: Session, matching: ScheduleFilter, order: Order) -> Scan:
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
        filters = [is_known, *state, *owner, *prefix, *filters]
        return Scan(order, _columns(order), served, filters)
    if order == Order.NAME:
        return Scan(order, _columns(order), prefix, [*state, *filters])
    # With the owner in ORDER BY, MariaDB sorts all schedules of the owner. With a condition on the
    # owner, a comparison of both columns is not an index range.
    columns = _columns(order) if matching.owner is None else (Schedule.name,)
    if matching.state in RARE_STATES and _has_partial_indexes(session):
        served = [*owner, state[0]]
        return Scan(order, columns, served, [*state[1:], *prefix, *filters])
    # The names of one owner are a range of the index. The names of several owners are not.
    if matching.owner is not None:
        return Scan(order, columns, [*owner, *prefix], [*state, *filters])
    return Scan(order, columns, owner, [*state, *prefix, *filters])


def _has_partial_indexes(session: Session) -> bool:
    return capabilities_in(session).has_partial_indexes


def _columns(order: Order) -> tuple[Any, ...]:
    return tuple(getattr(Schedule, name) for name in KEYS[order])


def _read(
    session: Session, scan: Scan, *, owner: str | None, after: Position | None, limit: int
) -> Rows:
    if scan.order == Order.OWNER and owner is not None and after is not None:
        # The scan reads only this owner. The cursor can be of a list of several owners.
        if after.key[0] > owner:
            return Rows([], None)
        after = after if after.key[0] == owner else None
    return scans.page(session, scan, after=after, limit=limit)


def _selected(session: Session, matching: ScheduleFilter, order: Order) -> Scan | None:
    """Return how to select a set that the list consists of, if no index has the list's order."""
    is_rare = matching.state in RARE_STATES
    if not matching.is_of_all:
        return _scan(session, matching, Order.OWNER) if order == Order.NEXT_RUN_AT else None
    if not is_rare or (order == Order.OWNER and _has_partial_indexes(session)):
        return None
    return _state_set(session, matching)


def _state_set(session: Session, matching: ScheduleFilter) -> Scan:
    if _has_partial_indexes(session):
        return _scan(session, matching, Order.OWNER)
    assert matching.state is not None  # noqa: S101 - the callers check it
    condition, *state = in_state(matching)
    # The first column of the index of the unplanned schedules.
    served = [Schedule.enabled.in_([True, False])] if matching.state == State.FINISHED else []
    filters = [*state, *has_prefix(matching), *others(session, matching)]
    order = Order.OWNER
    return Scan(order, _columns(order), [*served, condition], filters)


def _is_small(session: Session, scan: Scan) -> bool:
    few = select(Schedule.id).where(*scan.served)
    few = few.limit(scans.MAX_SCANNED + 1)
    number = session.scalar(select(func.count()).select_from(few.subquery()))
    return (number or 0) <= scans.MAX_SCANNED


def _sorted_page(
    session: Session, scan: Scan, *, order: Order, after: Position | None, limit: int
) -> Rows:
    """Return a page of a small set, which is sorted here."""
    columns = [getattr(Schedule, name) for name in {*KEYS[order], "id"}]
    statement: Any = select(*columns)
    statement = statement.where(*scan.served, *scan.filters)
    if order == Order.NEXT_RUN_AT:
        statement = statement.where(Schedule.next_run_at.is_not(None), Schedule.held_at.is_(None))
    rows = session.execute(statement)
    return scans.sorted_page(session, Schedule, rows, order=order, after=after, limit=limit)


def _held_page(
    session: Session, *, matching: ScheduleFilter, after: Position | None, limit: int
) -> Rows:
    """Return a page of the schedules of held owners, by owner and name."""
    found: list[Schedule] = []
    held = _held_owners(session, matching, since=None if after is None else after.key[0])
    last = after
    for owner in held.owners:
        of_owner = replace(matching, owner=owner, state=State.ACTIVE)
        start = after if after is not None and after.key[0] == owner else None
        scan, room = _scan(session, of_owner, Order.OWNER), limit - len(found)
        part = scans.page(session, scan, after=start, limit=room)
        found += part.rows
        if part.last is not None:
            return Rows(found, part.last)
        last = Position(Order.OWNER, (owner, found[-1].name if part.rows else ""))
        if len(found) == limit:
            return Rows(found, last)
    return Rows(found, last if held.is_more else None)


class _HeldOwners(NamedTuple):
    """Owners with a hold in force, and whether there are more."""

    owners: Sequence[str]
    is_more: bool


def _held_owners(session: Session, matching: ScheduleFilter, *, since: str | None) -> _HeldOwners:
    """Return the first held owners from owner ``since`` on."""
    held: Any = select(Hold.owner)
    held = held.where(Hold.owner.is_not(None), is_in_force(matching))
    held = held.where(*has_owner(matching, Hold.owner))
    if since is not None:
        held = held.where(Hold.owner >= since)
    found = session.scalars(held.order_by(Hold.owner).limit(_MAX_OWNERS)).all()
    return _HeldOwners(found, is_more=len(found) == _MAX_OWNERS)


def count(session: Session, *, matching: ScheduleFilter, limit: int | None = None) -> BoundedCount:
    """Return the number of matching schedules.

    At most ``limit`` + 1 schedules are read, by default MAX_SCANNED + 1. Of a rare state they lie
    anywhere in the table.
    """
    limit = scans.MAX_SCANNED if limit is None else limit
    in_effect = _in_effect(session, matching)
    if in_effect is None:
        return ZERO
    matching = in_effect
    if matching.state == State.HELD:
        return _count_held(session, matching, limit)
    return scans.count(session, _counted(session, matching), limit=limit).cut(limit)


def _count_held(session: Session, matching: ScheduleFilter, limit: int) -> BoundedCount:
    """Count the schedules of the first held owners."""
    held = _held_owners(session, matching, since=None)
    total = BoundedCount(count=0, exact=not held.is_more)
    for owner in held.owners:
        of_owner = replace(matching, owner=owner, state=State.ACTIVE)
        scan = _scan(session, of_owner, Order.OWNER)
        found = scans.count(session, scan, limit=limit)
        total += found
        if not found.exact or total.count > limit:
            break
    return total.cut(limit)


def _counted(session: Session, matching: ScheduleFilter) -> Scan:
    """Return how to read the smallest set that contains the matching schedules."""
    if matching.is_of_all and matching.state in RARE_STATES:
        return _state_set(session, matching)
    if matching.is_of_all and matching.state == State.OVERDUE:
        return _scan(session, matching, Order.NEXT_RUN_AT)
    if matching.is_of_all and matching.name_prefix:
        return _scan(session, matching, Order.NAME)
    if matching.is_of_all and matching.state == State.ACTIVE:
        order, is_planned = Order.NEXT_RUN_AT, [Schedule.next_run_at.is_not(None)]
        filters = others(session, matching)
        return Scan(order, _columns(order), is_planned, filters)
    return _scan(session, matching, Order.OWNER)


def in_state(matching: ScheduleFilter) -> Sequence[ColumnElement[bool]]:
    """Return the conditions of the state. A hold of everything is not considered."""
    conditions = list(_CONDITIONS[matching.state]) if matching.state else []
    if matching.state == State.HELD:
        conditions.append(_has_hold(matching))
    if matching.state == State.OVERDUE:
        conditions += [Schedule.next_run_at < matching.overdue_before, not_(_has_hold(matching))]
    return conditions


def _has_hold(matching: ScheduleFilter) -> ColumnElement[bool]:
    # A hold of everything is read separately: an OR would hide the index on the owner.
    hold = select(Hold.id)
    return exists(hold.where(Hold.owner == Schedule.owner, is_in_force(matching)))


def is_in_force(matching: ScheduleFilter) -> ColumnElement[bool]:
    """Return the condition that a hold has not ended."""
    return or_(Hold.until_at.is_(None), Hold.until_at > matching.now)


def has_prefix(matching: ScheduleFilter) -> Sequence[ColumnElement[bool]]:
    """Return the conditions that the name begins with the prefix, if the filter has one."""
    return _begins(Schedule.name, matching.name_prefix) if matching.name_prefix else []


def has_owner(
    matching: ScheduleFilter, column: Any = Schedule.owner
) -> Sequence[ColumnElement[bool]]:
    """Return the conditions on the owner, if the filter has some."""
    if matching.owner is not None:
        return [column == matching.owner]
    return _begins(column, matching.owner_prefix) if matching.owner_prefix else []


def _begins(column: Any, prefix: str) -> Sequence[ColumnElement[bool]]:
    """Return the conditions that ``column`` begins with the prefix: a range of code points."""
    end = _end_of_prefix(prefix)
    return [column >= prefix] if end is None else [column >= prefix, column < end]


def _end_of_prefix(prefix: str) -> str | None:
    """Return the first text after all texts that begin with ``prefix``, or None without one."""
    shorter = prefix.rstrip(chr(sys.maxunicode))
    if not shorter:
        return None
    following = ord(shorter[-1]) + 1
    is_surrogate = _FIRST_SURROGATE <= following < _AFTER_SURROGATES
    return shorter[:-1] + chr(_AFTER_SURROGATES if is_surrogate else following)


def others(session: Session, matching: ScheduleFilter) -> Sequence[ColumnElement[bool]]:
    """Return the conditions on task, enabled, tag and text, which no index serves."""
    conditions: list[Any] = []
    if matching.task is not None:
        conditions.append(Schedule.task == matching.task)
    if matching.enabled is not None:
        conditions.append(Schedule.enabled == matching.enabled)
    if matching.tag is not None:
        conditions.append(capabilities_in(session).has_tag(Schedule.tags, matching.tag))
    if matching.text is not None:
        conditions.append(has_text(Schedule.owner, Schedule.name, text=matching.text))
    return conditions


#: Schedules that are counted by the minute of their next run.
MAX_COUNTED = 50_000
_DUE_ORDER = (Schedule.next_run_at, Schedule.id)
_PLANNED = (*PLAN_COLUMNS, Schedule.tags, Schedule.options)


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
    if matching.owner is not None and _is_small_owner(session, matching.owner):
        return _of_small_owner(session, matching, [*span, *chosen], limit)
    filters = [*chosen, *has_owner(matching), *others(session, matching)]
    scan = Scan(Order.NEXT_RUN_AT, _DUE_ORDER, span, filters)
    found = scans.page(session, scan, after=None, limit=limit, columns=_PLANNED)
    return PlannedRows(found.rows, found.last is not None)


def _is_once() -> ColumnElement[bool]:
    # Only the plan of a row with skips knows whether it runs.
    return and_(Schedule.trigger_kind == Once.kind, Schedule.skips.is_(None))


def _is_not_in(session: Session, found: PlannedRows) -> ColumnElement[bool]:
    """Return the condition that ``recurring`` did not find the schedule."""
    if not found.is_more:
        return _is_once()
    if not found.rows:
        return true()
    capabilities = capabilities_in(session)
    last = found.rows[-1]
    return or_(_is_once(), capabilities.row_after(_DUE_ORDER, (last.next_run_at, last.id)))


def by_minute(
    session: Session, *, matching: ScheduleFilter, until: datetime, except_for: PlannedRows
) -> PlannedMinutes:
    """Count the schedules by the minute of their next run before ``until``, and by their options.

    ``except_for`` is a result of ``recurring`` whose schedules are left out. The next MAX_COUNTED
    schedules are read.
    """
    chosen = [_is_not_in(session, except_for), *others(session, matching)]
    is_small = matching.owner is not None and _is_small_owner(session, matching.owner)
    chosen += has_owner(matching)
    capabilities = capabilities_in(session)
    columns: Select[Any] = select(
        capabilities.minute_of(Schedule.next_run_at).label("minute"),
        Schedule.task,
        as_text(Schedule.options, type_=Text()).label("options"),
        case((and_(*chosen), 1), else_=0).label("is_chosen"),
    )
    read = columns
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
    key: Any = select(Schedule.id, Schedule.next_run_at)
    found = key.where(*has_owner(matching), *condition, *others(session, matching))
    # Sorted here: for an ORDER BY, PostgreSQL would read the due index of all owners.
    keys = sorted((row.next_run_at, row.id) for row in statements.read(session, found))
    ids = [row_id for _, row_id in keys[:limit]]
    rows = statements.read(session, select(*_PLANNED).where(Schedule.id.in_(ids)))
    return PlannedRows(sorted(rows, key=lambda row: (row.next_run_at, row.id)), len(keys) > limit)


def _in_span(since: datetime | None, until: datetime) -> list[ColumnElement[bool]]:
    condition = [Schedule.next_run_at.is_not(None), Schedule.next_run_at < until]
    return condition if since is None else [*condition, Schedule.next_run_at >= since]


def _is_small_owner(session: Session, owner: str) -> bool:
    """Return whether the schedules of the owner can all be read."""
    return _is_small(session, _scan(session, ScheduleFilter(owner=owner), Order.OWNER))
