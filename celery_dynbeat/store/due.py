"""Beat's queries on schedules: due, unplanned, unreadable, unsupported, quarantined."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Integer,
    Row,
    Select,
    bindparam,
    func,
    not_,
    null,
    select,
    update,
)
from sqlalchemy.orm import Session

from celery_dynbeat.db import batches
from celery_dynbeat.db.index_order import force_index, in_index_order
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.db.tables import SCHEDULES
from celery_dynbeat.db.types import UtcDateTime
from celery_dynbeat.store import holds
from celery_dynbeat.store.own_rules import names_rule
from celery_dynbeat.store.rows import LockedRows, UnreadableRow, read
from celery_dynbeat.store.runs import execute_dml
from celery_dynbeat.store.schedules import check_deleted
from celery_dynbeat.triggers import KINDS

_COLUMNS = SCHEDULES.c
DUE_INDEX = "ix_dynbeat_schedule_due"
_UNPLANNED_INDEX = "ix_dynbeat_schedule_unplanned"
#: Rows at the start of an index that are searched for unsupported triggers.
UNSUPPORTED_SEARCH_LIMIT = 500


class DueSchedule(NamedTuple):
    """What beat needs to plan and publish the runs of a schedule: its columns, and what they say.

    ``pings``: the schedule has a ping URL, which only workers need. ``has_late_rule``: its own
    alert rules name ``late_after``. ``next_run_at`` None: SQL by hand wrote what beat cannot read.
    ``was_held``: a claim found it held. ``any_hold``: there is any hold at all, in force or not.
    """

    id: int
    owner: str
    name: str
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    options: dict[str, Any]
    trigger_kind: str
    trigger_spec: str
    timezone: str
    anchor_at: datetime | None
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    run_count: int
    catch_up: str | None
    catch_up_window: float | None
    expires_after: float | None
    jitter: float | None
    overlap: str | None
    max_run_time: float | None
    next_fire_at: datetime | None
    next_run_at: datetime | None
    skipped_until: datetime | None
    last_run_at: datetime | None
    created_at: datetime
    version: int
    pings: bool
    has_late_rule: bool
    was_held: bool
    any_hold: bool

    @property
    def may_be_held(self) -> bool:
        """Whether the owner may have a hold in force."""
        return self.was_held or self.any_hold


class DueRows(NamedTuple):
    """The readable schedules in the order of the statement, and the unreadable ones."""

    rows: Sequence[DueSchedule]
    unreadable: Sequence[UnreadableRow]


_COMPUTED: Mapping[str, ColumnElement[bool]] = {
    "pings": _COLUMNS.ping_url.is_not(None),
    "has_late_rule": names_rule("late_after"),
    # Not held_at: converting an instant for each row of a claim takes longer.
    "was_held": _COLUMNS.held_at.is_not(None),
    "any_hold": holds.any_hold(),
}
_DUE_COLUMNS = [
    _COMPUTED[name].label(name) if name in _COMPUTED else _COLUMNS[name]
    for name in DueSchedule._fields
]
_COLUMNS_TO_RUN = [column for column in _DUE_COLUMNS if column is not _COLUMNS.next_run_at]
# The order of an index, so that PostgreSQL uses it. The planner multiplies the selectivity of the
# conditions. In a table full of finished one-offs it therefore expects many unplanned rows, and
# reads the whole table for the first one, although there is none.
_UNPLANNED = (_COLUMNS.enabled,)


def _has_supported_trigger() -> ColumnElement[bool]:
    """Return the condition that this version supports the row's kind of trigger.

    During a rolling upgrade only the newer beats may support a kind. An older beat leaves such a
    row unchanged in the index, for a newer beat.
    """
    return _COLUMNS.trigger_kind.in_(KINDS)


@in_index_order
def lock_due(
    session: Session,
    *,
    now: datetime,
    limit: int,
    since: datetime | None = None,
    only_owners: Collection[str] = (),
    except_owners: Collection[str] = (),
) -> DueRows:
    """Return up to ``limit`` schedules due at ``now``, oldest first, locked for this transaction.

    Unreadable rows are locked, too. Rows locked by another beat are skipped, and rows whose trigger
    this version does not support. SQLite has no row locks; there the write lock of the transaction
    keeps two beats apart. ``since`` is the earliest ``next_run_at`` to read; None means all.
    During a hold of everything no row is returned. ``only_owners`` and ``except_owners`` limit the
    owners.
    """
    statement = _lock_due_statement(since is not None)
    values = {"now": now, "limit": limit, "since": since}
    if only_owners:
        statement = statement.where(_COLUMNS.owner.in_(only_owners))
    if except_owners:
        statement = statement.where(_COLUMNS.owner.not_in(except_owners))
    return _read(session, statement, values)


def due_statement(*, now: datetime, limit: int) -> Select[Any]:
    """Return the statement of ``lock_due`` without ``since``, for EXPLAIN."""
    return _lock_due_statement(False).params(now=now, limit=limit)  # noqa: FBT003 - a key of the cache


# Cached: all passes use the same statement.
@cache
def _lock_due_statement(in_part: bool) -> Select[Any]:  # noqa: FBT001
    at = _COLUMNS.next_run_at
    now = bindparam("now", type_=UtcDateTime)
    due = force_index(select(*_DUE_COLUMNS), SCHEDULES, DUE_INDEX).where(
        at.is_not(None), at <= now, _has_supported_trigger(), not_(holds.everything_is_held(now))
    )
    if in_part:
        due = due.where(at >= bindparam("since", type_=UtcDateTime))
    first = due.order_by(at, _COLUMNS.id).limit(bindparam("limit", type_=Integer))
    return first.with_for_update(skip_locked=True)


@in_index_order
def lock_unplanned(session: Session, *, limit: int) -> DueRows:
    """Return up to ``limit`` unplanned schedules, locked like those of ``lock_due``."""
    return _read(session, unplanned_statement(limit=limit))


def unplanned_statement(*, limit: int) -> Select[Any]:
    """Return the statement of ``lock_unplanned``, for EXPLAIN."""
    unplanned = force_index(select(*_DUE_COLUMNS), SCHEDULES, _UNPLANNED_INDEX)
    unplanned = unplanned.where(*_unplanned()).order_by(*_UNPLANNED).limit(limit)
    return unplanned.with_for_update(skip_locked=True)


def _read(
    session: Session, statement: Select[Any], values: Mapping[str, Any] | None = None
) -> DueRows:
    found = read(session, statement, key=_COLUMNS.id, values=values, make=DueSchedule._make)
    unplanned = [row.id for row in found.unreadable if row.column == str(_COLUMNS.next_run_at)]
    if not unplanned:
        return DueRows(*found)
    # A plan needs no next_run_at, and writes it again.
    columns = [
        null().label(column.name) if column is _COLUMNS.next_run_at else column
        for column in _DUE_COLUMNS
    ]
    statement = statement.params(values or {}).where(_COLUMNS.id.in_(unplanned))
    statement = statement.with_only_columns(*columns, maintain_column_froms=True)
    again = read(session, statement, key=_COLUMNS.id, make=DueSchedule._make)
    others = [row for row in found.unreadable if row.id not in unplanned]
    return DueRows([*again.rows, *found.rows], [*again.unreadable, *others])


@in_index_order
def lock_unreadable(session: Session, *, schedule_ids: Collection[int]) -> Sequence[UnreadableRow]:
    """Return the unreadable ones of the schedules that are not quarantined, with their errors.

    All these schedules are locked for this transaction, readable or not. Rows that another
    transaction has locked are skipped.
    """
    statement = _by_ids(schedule_ids, *_COLUMNS_TO_RUN).where(_COLUMNS.error.is_(None))
    return read(session, statement.with_for_update(skip_locked=True), key=_COLUMNS.id).unreadable


@in_index_order
def lock_by_ids(session: Session, schedule_ids: Collection[int]) -> LockedRows:
    """Return the schedules with these ids, locked like those of ``lock_due``, due or not."""
    added = (_COLUMNS.enabled, _COLUMNS.error, _COLUMNS.next_run_at, _COLUMNS.finished_at)
    statement = _by_ids(schedule_ids, *_COLUMNS_TO_RUN, *added).order_by(_COLUMNS.id)
    return read(session, statement.with_for_update(skip_locked=True), key=_COLUMNS.id)


@in_index_order
def existing_ids(session: Session, schedule_ids: Collection[int]) -> Sequence[int]:
    """Return those of the ids that belong to a schedule, locked or not."""
    return session.scalars(_by_ids(schedule_ids, _COLUMNS.id)).all()


def _by_ids(schedule_ids: Collection[int], *columns: Any) -> Select[Any]:
    statement = force_index(select(*columns), SCHEDULES, "PRIMARY")
    return statement.where(_COLUMNS.id.in_(schedule_ids))


def first_due_id(*, now: datetime) -> Any:
    """Return a subquery for the id of the first due schedule, NULL if none is due.

    It reads no instant, so it works for unreadable rows.
    """
    at = _COLUMNS.next_run_at
    due = force_index(select(_COLUMNS.id), SCHEDULES, DUE_INDEX)
    due = due.where(at.is_not(None), at <= now, _has_supported_trigger())
    return due.order_by(at, _COLUMNS.id).limit(1).scalar_subquery()


def first_unplanned_id() -> Any:
    """Return a subquery for the id of an unplanned schedule, NULL if there is none."""
    unplanned = force_index(select(_COLUMNS.id), SCHEDULES, _UNPLANNED_INDEX)
    return unplanned.where(*_unplanned()).order_by(*_UNPLANNED).limit(1).scalar_subquery()


def earliest_next_run_at(*, since: Any = None) -> Any:
    """Return a subquery for the earliest ``next_run_at``, from ``since`` on if it is given."""
    # Not min(): with another condition MariaDB reads the whole index for it.
    at = _COLUMNS.next_run_at
    earliest = force_index(select(at), SCHEDULES, DUE_INDEX)
    earliest = earliest.where(at.is_not(None), _has_supported_trigger())
    if since is not None:
        earliest = earliest.where(at >= since)
    return earliest.order_by(at, _COLUMNS.id).limit(1).scalar_subquery()


@in_index_order
def find_unsupported(session: Session, *, now: datetime, limit: int) -> Sequence[Row[Any]]:
    """Return id, owner, name and kind of up to ``limit`` schedules with unsupported triggers.

    Only due and unplanned schedules are searched: the first UNSUPPORTED_SEARCH_LIMIT rows of each.
    Unsupported rows stay at the start of the index, because beat claims all the others.
    """
    columns = (_COLUMNS.id, _COLUMNS.owner, _COLUMNS.name, _COLUMNS.trigger_kind)
    due = (_COLUMNS.next_run_at.is_not(None), _COLUMNS.next_run_at <= now)
    searches = (
        (DUE_INDEX, due, (_COLUMNS.next_run_at, _COLUMNS.id)),
        (_UNPLANNED_INDEX, _is_unplanned_of_any_kind(), _UNPLANNED),
    )
    unsupported: list[Any] = []
    for index, conditions, order in searches:
        first = (
            force_index(select(*columns), SCHEDULES, index)
            .where(*conditions)
            .order_by(*order)
            .limit(UNSUPPORTED_SEARCH_LIMIT)
            .subquery()
        )
        statement = select(first).where(first.c.trigger_kind.not_in(KINDS)).limit(limit)
        unsupported += session.execute(statement).all()
    return unsupported[:limit]


def _unplanned() -> tuple[Any, ...]:
    # A row inserted by hand may have another spelling; beat stores the canonical one. Due rows are
    # compared without functions, so that an index serves them.
    typed = func.lower(func.trim(_COLUMNS.trigger_kind))
    return (*_is_unplanned_of_any_kind(), typed.in_(KINDS))


def _is_unplanned_of_any_kind() -> tuple[Any, ...]:
    return (
        _COLUMNS.enabled,
        _COLUMNS.next_run_at.is_(None),
        _COLUMNS.finished_at.is_(None),
        _COLUMNS.error.is_(None),
    )


@in_index_order
def advance(session: Session, changes: Sequence[Mapping[str, Any]]) -> None:
    """Update schedules by ``id`` with what beat decided. All changes have the same columns."""
    if not changes:
        return
    batches.update_each(session.connection(), SCHEDULES, changes)


def quarantine(session: Session, *, schedule_id: int, version: int, error: str) -> bool:
    """Quarantine a schedule with ``error``. Return False if it was edited since ``version``.

    Raises RowLockedError if another transaction has locked it.
    """
    lock = select(Schedule.version, Schedule.enabled).where(Schedule.id == schedule_id)
    row = session.execute(lock.with_for_update(skip_locked=True)).one_or_none()
    if row is None:
        check_deleted(session, schedule_id=schedule_id)
    if row is None or row.version != version or not row.enabled:
        return False
    quarantined = update(Schedule).where(Schedule.id == schedule_id)
    execute_dml(session, quarantined.values(next_run_at=None, held_at=None, error=error))
    return True


def store_unreadable_errors(session: Session, unreadable: Iterable[UnreadableRow]) -> None:
    """Quarantine locked schedules that cannot be read."""
    quarantined = {"next_run_at": None, "held_at": None}
    advance(session, [{"id": each.id, **quarantined, "error": str(each)} for each in unreadable])
