"""What beat asks of the table of schedules, and what it writes to it: due, unplanned, set aside."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Integer, Row, Select, bindparam, func, select, update
from sqlalchemy.orm import Session

from celery_dynbeat.db import batches
from celery_dynbeat.db.index_order import in_index_order
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.db.tables import SCHEDULES
from celery_dynbeat.db.types import UtcDateTime
from celery_dynbeat.store.rows import LockedRows, UnreadableRow, read
from celery_dynbeat.triggers import KINDS

_COLUMNS = SCHEDULES.c
#: Schedules at the front of the index that are searched for those that this version passes over.
UNSUPPORTED_SEARCH_LIMIT = 500
#: What beat needs of a schedule in order to plan and publish its runs; nothing else is read.
_DUE_COLUMNS = (
    _COLUMNS.id,
    _COLUMNS.owner,
    _COLUMNS.name,
    _COLUMNS.task,
    _COLUMNS.args,
    _COLUMNS.kwargs,
    _COLUMNS.options,
    _COLUMNS.trigger_kind,
    _COLUMNS.trigger_spec,
    _COLUMNS.timezone,
    _COLUMNS.anchor_at,
    _COLUMNS.start_at,
    _COLUMNS.end_at,
    _COLUMNS.max_runs,
    _COLUMNS.run_count,
    _COLUMNS.catch_up,
    _COLUMNS.catch_up_window,
    _COLUMNS.expires_after,
    _COLUMNS.jitter,
    _COLUMNS.overlap,
    _COLUMNS.max_run_time,
    _COLUMNS.next_fire_at,
    _COLUMNS.last_run_at,
    _COLUMNS.created_at,
    _COLUMNS.version,
)
# The order of an index, so that it is used. PostgreSQL multiplies the shares of rows that meet each
# of several conditions: a table full of one-offs that are over looks full of what is sought, too,
# and the whole of it is read until the first turns up, of which there is none.
_UNPLANNED = (_COLUMNS.enabled,)


def _has_supported_trigger() -> ColumnElement[bool]:
    """Return the condition that this version knows the row's kind of trigger.

    During a rolling upgrade a row may be of a kind that only the newer beats know. It stays in the
    index, untouched, for one of them.
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
) -> LockedRows:
    """Return up to ``limit`` schedules due at ``now``, oldest first, locked for this transaction.

    Rows that another beat has locked are skipped, and those of a kind that only a newer version
    knows. SQLite has no row locks and ignores the clause; there the write lock of the transaction
    keeps two beats apart. Only what is due ``since`` is looked at. ``only`` and ``without`` name
    owners whose schedules alone are wanted, or are not. What is due and cannot be read is locked
    too.
    """
    statement = _due(since is not None)
    values = {"now": now, "limit": limit, "since": since}
    if only_owners:
        statement = statement.where(_COLUMNS.owner.in_(only_owners))
    if except_owners:
        statement = statement.where(_COLUMNS.owner.not_in(except_owners))
    return read(session, statement, key=_COLUMNS.id, values=values)


def due_statement(*, now: datetime, limit: int) -> Select[Any]:
    """Return the statement of ``lock_due``, for those who want to see its plan."""
    return _due(False).params(now=now, limit=limit)  # noqa: FBT003 - the key of a cache


# Made once for all passes.
@cache
def _due(in_part: bool) -> Select[Any]:  # noqa: FBT001
    at = _COLUMNS.next_run_at
    due = select(*_DUE_COLUMNS).where(
        at.is_not(None), at <= bindparam("now", type_=UtcDateTime), _has_supported_trigger()
    )
    if in_part:
        due = due.where(at >= bindparam("since", type_=UtcDateTime))
    first = due.order_by(at, _COLUMNS.id).limit(bindparam("limit", type_=Integer))
    return first.with_for_update(skip_locked=True)


@in_index_order
def lock_unplanned(session: Session, *, limit: int) -> LockedRows:
    """Return up to ``limit`` enabled schedules without a next run, locked like the due ones."""
    return read(session, unplanned_statement(limit=limit), key=_COLUMNS.id)


def unplanned_statement(*, limit: int) -> Select[Any]:
    """Return the statement of ``lock_unplanned``."""
    unplanned = select(*_DUE_COLUMNS).where(*_unplanned()).order_by(*_UNPLANNED).limit(limit)
    return unplanned.with_for_update(skip_locked=True)


@in_index_order
def lock_unreadable(session: Session, *, schedule_ids: Collection[int]) -> Sequence[UnreadableRow]:
    """Return what is wrong with those of the schedules that cannot be read; all are locked.

    Those that another transaction has locked are passed over.
    """
    statement = select(*_DUE_COLUMNS).where(Schedule.id.in_(schedule_ids), Schedule.error.is_(None))
    return read(session, statement.with_for_update(skip_locked=True), key=Schedule.id).unreadable


def first_due_id(*, now: datetime) -> Any:
    """Return the condition that a schedule is due, as the database itself compares instants."""
    due = select(Schedule.id).where(Schedule.next_run_at.is_not(None), Schedule.next_run_at <= now)
    first = due.where(_has_supported_trigger()).order_by(Schedule.next_run_at, Schedule.id)
    return first.limit(1).scalar_subquery()


def first_unplanned_id() -> Any:
    """Return the condition that an unplanned schedule exists."""
    unplanned = select(_COLUMNS.id).where(*_unplanned()).order_by(*_UNPLANNED)
    return unplanned.limit(1).scalar_subquery()


def earliest_next_run_at(*, since: Any = None) -> Any:
    """Return the subquery for the earliest ``next_run_at`` of all, or from ``since`` on."""
    # Not min(): beside another condition MariaDB reads the whole index for it.
    at = _COLUMNS.next_run_at
    earliest = select(at).where(at.is_not(None), _has_supported_trigger())
    if since is not None:
        earliest = earliest.where(at >= since)
    return earliest.order_by(at, _COLUMNS.id).limit(1).scalar_subquery()


@in_index_order
def find_unsupported(session: Session, *, now: datetime, limit: int) -> Sequence[Row[Any]]:
    """Return id, owner, name and kind of up to ``limit`` schedules that this version passes over.

    Only of those whose turn it is: that are due, or that are not planned yet. Of each, the
    first UNSUPPORTED_SEARCH_LIMIT are looked at: there they stay, while beat claims the others.
    """
    columns = (Schedule.id, Schedule.owner, Schedule.name, Schedule.trigger_kind)
    due = (Schedule.next_run_at.is_not(None), Schedule.next_run_at <= now)
    their_turn = (
        (due, (Schedule.next_run_at, Schedule.id)),
        (_is_unplanned_of_any_kind(), _UNPLANNED),
    )
    found: list[Any] = []
    for conditions, order in their_turn:
        front = (
            select(*columns)
            .where(*conditions)
            .order_by(*order)
            .limit(UNSUPPORTED_SEARCH_LIMIT)
            .subquery()
        )
        statement = select(front).where(front.c.trigger_kind.not_in(KINDS)).limit(limit)
        found += session.execute(statement).all()
    return found[:limit]


def _unplanned() -> tuple[Any, ...]:
    # As it was typed; beat writes what it understood. An index would not serve it for what is due.
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
    """Write what beat decided; each change holds ``id`` and the same columns as the others."""
    if not changes:
        return
    batches.update_each(session.connection(), SCHEDULES, changes)


def quarantine(session: Session, *, schedule_id: int, version: int, error: str) -> bool:
    """Take a schedule out of the index with ``error``, unless somebody has edited it since."""
    statement = (
        update(Schedule)
        .where(Schedule.id == schedule_id, Schedule.version == version, Schedule.enabled)
        .values(next_run_at=None, error=error)
    )
    result = session.execute(statement, execution_options={"synchronize_session": False})
    return bool(result.rowcount == 1)  # type: ignore[attr-defined]


def quarantine_unreadable(session: Session, unreadable: Iterable[UnreadableRow]) -> None:
    """Take schedules that are locked and cannot be read out of the index."""
    advance(
        session, [{"id": each.id, "next_run_at": None, "error": str(each)} for each in unreadable]
    )
