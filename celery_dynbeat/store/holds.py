"""Queries on holds. A hold is in force until it is released, or until ``until_at``.

    hold()            inserts one row; no schedule changes
    claim             moves the due schedules of a held owner out of the start of the due index
    release()         deletes the row, and makes the held schedules due
    until_at passes   the held schedules are due by themselves
    maintenance       deletes expired rows, and repairs schedules that are held without a hold

A hold of a group, such as "org:7/", is one row. It holds each owner whose name begins with it.

A schedule is held if it has ``held_at``. A claim that sets it locks the owner's hold. A release
that deletes the hold waits for that claim, so its UPDATE finds the held schedule. The claim does
not wait. If a transaction that may be a release has locked the hold, the claim holds the schedule
only for a short time.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    Update,
    bindparam,
    exists,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from celery_dynbeat.common.text import groups_of, is_group
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import HOLDS, SCHEDULES, Hold, Schedule
from celery_dynbeat.db.statements import Row, force_index, in_index_order, read
from celery_dynbeat.db.types import UtcDateTime
from celery_dynbeat.store.owners import OWNER_NAME_INDEX, is_of
from celery_dynbeat.store.runs import MAX_IN_LIST, execute_dml

#: ``next_run_at`` of a schedule whose hold has no end. Each database and driver can store it.
NEVER = datetime(9999, 1, 1, tzinfo=UTC)

_HOLD = HOLDS.c
OWNER_INDEX, _END_INDEX = "ix_dynbeat_hold_owner", "ix_dynbeat_hold_until_at"
_HELD_INDEX, _PRIMARY = "ix_dynbeat_schedule_held_at", "PRIMARY"
#: The ends of the holds of some owners.
_ENDS = force_index(select(_HOLD.id, _HOLD.owner, _HOLD.until_at), HOLDS, OWNER_INDEX)


@dataclass(frozen=True, slots=True)
class Ends:
    """The ends of the holds of some owners and their groups; ``NEVER`` for a hold without an end.

    ``at`` has an entry for each owner with a hold in force. ``unsure`` are the owners with a hold
    that another transaction has locked: a release that is not committed, for example.
    """

    at: Mapping[str, datetime]
    unsure: frozenset[str]


def _in_force(now: Any) -> ColumnElement[bool]:
    return or_(_HOLD.until_at.is_(None), _HOLD.until_at > now)


def _is_of(owner: str | None) -> ColumnElement[bool]:
    return _HOLD.owner.is_(None) if owner is None else _HOLD.owner == owner


def everything_is_held(now: Any) -> ColumnElement[bool]:
    """Return the condition that a hold of everything is in force."""
    return _exists_of_everything(_in_force(now))


def everything_is_held_without_end() -> ColumnElement[bool]:
    """Return the condition that a hold of everything has no end."""
    return _exists_of_everything(_HOLD.until_at.is_(None))


def _exists_of_everything(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    hold = force_index(select(_HOLD.id), HOLDS, OWNER_INDEX)
    return exists(hold.where(_HOLD.owner.is_(None), condition))


def last_end_of_everything(now: Any) -> Any:
    """Return a subquery for the latest end of the holds of everything, NULL if there is none."""
    latest = force_index(select(func.max(_HOLD.until_at)), HOLDS, OWNER_INDEX)
    return latest.where(_HOLD.owner.is_(None), _HOLD.until_at > now).scalar_subquery()


def any_hold() -> ColumnElement[bool]:
    """Return the condition that there is any hold, in force or not.

    There is none in the usual case. The database looks once for each statement, not once for each
    schedule.
    """
    return select(_HOLD.id).limit(1).scalar_subquery().is_not(None)


@in_index_order
def lock_ends(session: Session, owners: Collection[str], *, now: datetime) -> Ends:
    """Return the ends of the holds of ``owners`` and their groups, locked for this transaction."""
    names = _with_groups(owners)
    of_owners = _ENDS.where(_HOLD.owner.in_(names), _in_force(now))
    present = session.execute(of_owners.with_only_columns(_HOLD.id, _HOLD.owner)).all()
    # FOR SHARE is not used, because MySQL and MariaDB have no common form of it with SKIP LOCKED.
    locked = read(session, of_owners.with_for_update(skip_locked=True))
    locked_ids = {row.id for row in locked}
    unsure = {row.owner for row in present if row.id not in locked_ids}
    return Ends(
        latest_of(owners, _latest_ends(locked)),
        frozenset(owner for owner in owners if not unsure.isdisjoint(_covering(owner))),
    )


@in_index_order
def ends_of(session: Session, owners: Collection[str], *, now: datetime) -> Mapping[str, datetime]:
    """Return when the holds of these owners and their groups end, without a lock.

    Owners that are not held are left out.
    """
    of_owners = _ENDS.where(_HOLD.owner.in_(_with_groups(owners)), _in_force(now))
    return latest_of(owners, _latest_ends(read(session, of_owners)))


def _covering(owner: str) -> Sequence[str]:
    """Return the names whose holds apply to ``owner``: its groups and the owner itself."""
    return [*groups_of(owner), owner]


def _with_groups(owners: Collection[str]) -> Collection[str]:
    return {name for owner in owners for name in _covering(owner)}


def latest_of(owners: Collection[str], by_name: Mapping[str, datetime]) -> Mapping[str, datetime]:
    """Return the latest end for each owner that a hold in ``by_name`` holds."""
    if not by_name:
        return {}
    latest: dict[str, datetime] = {}
    for owner in owners:
        ends = [by_name[name] for name in _covering(owner) if name in by_name]
        if ends:
            latest[owner] = max(ends)
    return latest


def _latest_ends(rows: Sequence[Row]) -> Mapping[Any, datetime]:
    """Return the latest end by owner."""
    latest: dict[Any, datetime] = {}
    for row in rows:
        end = row.until_at or NEVER
        latest[row.owner] = max(latest.get(row.owner, end), end)
    return latest


@in_index_order
def end_of(session: Session, *, owner: str | None, now: datetime) -> datetime | None:
    """Return when the holds of the owner end, or None if no hold is in force.

    The holds of its groups and of everything count. ``owner=None`` means only the holds of
    everything. ``NEVER`` is a hold without an end.
    """
    ends: list[datetime] = []
    for scope in (None,) if owner is None else (None, *_covering(owner)):
        found = read(session, _ENDS.where(_is_of(scope), _in_force(now)))
        ends += _latest_ends(found).values()
    return max(ends, default=None)


@in_index_order
def lock_of(session: Session, *, owner: str | None, now: datetime) -> Sequence[Hold]:
    """Return the holds in force of an owner, or of everything, locked; the oldest first."""
    statement = _holds_of(owner).where(_in_force(now)).with_for_update()
    locked = session.scalars(statement.execution_options(populate_existing=True))
    # Without ORDER BY, because PostgreSQL would then read all holds in the order of their ids.
    return sorted(locked, key=lambda hold: hold.id)


@in_index_order
def lock_related(session: Session, *, owner: str, now: datetime) -> Mapping[str, datetime]:
    """Lock the holds that a release of ``owner`` depends on, and return their ends by name.

    These are the holds of the owner's groups. For a group, they include the holds of the owners and
    groups in it. Call this function before ``lock_of``: a group is locked before its owners.
    """
    ends: dict[str, datetime] = {}
    conditions: list[ColumnElement[bool]] = []
    if groups_of(owner):
        conditions.append(_HOLD.owner.in_(groups_of(owner)))
    if is_group(owner):
        conditions.append(is_of(_HOLD.owner, owner))
    for condition in conditions:
        related = _ENDS.where(condition, _in_force(now)).with_for_update()
        ends |= _latest_ends(read(session, related))
    ends.pop(owner, None)
    return ends


@in_index_order
def of_owner(session: Session, *, owner: str | None, now: datetime, limit: int) -> Sequence[Hold]:
    """Return up to ``limit`` holds in force of an owner, or of everything, in any order."""
    return session.scalars(_holds_of(owner).where(_in_force(now)).limit(limit)).all()


def _holds_of(owner: str | None) -> Select[Any]:
    return force_index(select(Hold), Hold, OWNER_INDEX).where(_is_of(owner))


@in_index_order
def of_owners(session: Session, *, now: datetime, limit: int) -> Sequence[Hold]:
    """Return up to ``limit`` holds in force of any owner, not of everything; the oldest first."""
    statement = select(Hold).where(Hold.owner.is_not(None), _in_force(now)).order_by(Hold.id)
    return session.scalars(statement.limit(limit)).all()


@in_index_order
def page(session: Session, *, now: datetime, after: int, limit: int) -> Sequence[Hold]:
    """Return up to ``limit`` holds in force with an id above ``after``, the oldest first."""
    statement = force_index(select(Hold), Hold, _PRIMARY).where(Hold.id > after, _in_force(now))
    statement = statement.order_by(Hold.id)
    return session.scalars(statement.limit(limit)).all()


def add(session: Session, hold: Hold) -> None:
    """Insert a hold."""
    session.add(hold)
    session.flush()


def delete_ids(session: Session, ids: Sequence[int]) -> int:
    """Delete locked holds and return their number."""
    if ids:
        # The caller's session may choose its database by the mapped class.
        connection = session.connection(bind_arguments={"mapper": Hold})
        capabilities_of(connection.dialect).delete(connection, HOLDS, ids)
    return len(ids)


@in_index_order
def delete_of_owner(session: Session, *, owner: str) -> int:
    """Delete all holds of an owner and return their number."""
    # The DELETE does not name the owner, because MySQL has no index hint for it.
    ids = force_index(select(Hold.id), Hold, OWNER_INDEX).where(Hold.owner == owner)
    return delete_ids(session, session.scalars(ids.with_for_update()).all())


@in_index_order
def delete_expired(session: Session, *, now: datetime, limit: int) -> int:
    """Delete up to ``limit`` holds that have ended. Locked ones are skipped."""
    expired = (
        force_index(select(_HOLD.id), HOLDS, _END_INDEX)
        .where(_HOLD.until_at.is_not(None), _HOLD.until_at <= now)
        .order_by(_HOLD.until_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return delete_ids(session, session.scalars(expired).all())


@in_index_order
def move_held(
    session: Session, *, owner: str, now: datetime, end: datetime | None, waits: bool = True
) -> None:
    """Make the held schedules of an owner due at ``end``, the end of its holds.

    ``end=None`` means that no hold is in force, so the schedules are due at ``now``. Schedules that
    are due earlier do not change. The rows are read in the order of their names, in parts. Unless
    it ``waits``, schedules that another transaction has locked are left out.
    """
    due_at = end or now
    after = ""
    while True:
        rows = session.execute(
            _lock_held_statement(waits), {"owner": owner, "after": after, "due_at": due_at}
        ).all()
        if not rows:
            return
        after = rows[-1].name
        _set_due(session, [row.id for row in rows], due_at=due_at, is_held=end is not None)


@in_index_order
def move_held_of_group(
    session: Session, *, group: str, now: datetime, ends: Mapping[str, datetime]
) -> None:
    """Make the held schedules of a group due at the end of the holds in ``ends``, or at ``now``.

    ``ends`` are the holds in force of the group, of its groups, and of the owners and groups in it.
    The rows are locked and read in the order of owner and name, in parts.
    """
    columns = SCHEDULES.c
    key = (columns.owner, columns.name)
    row_after = capabilities_of(session.get_bind(Schedule).dialect).row_after
    # A locking read, as for one owner.
    held = (
        force_index(select(columns.id, *key, columns.next_run_at), SCHEDULES, OWNER_NAME_INDEX)
        .where(is_of(columns.owner, group), columns.held_at.is_not(None), columns.next_run_at > now)
        .order_by(*key)
        .limit(MAX_IN_LIST)
        .with_for_update()
    )
    after = (group, "")
    while rows := read(session, held.where(row_after(key, after))):
        after = (rows[-1].owner, rows[-1].name)
        until = latest_of({row.owner for row in rows}, ends)
        due_at: dict[datetime | None, list[int]] = {}
        for row in rows:
            end = until.get(row.owner)
            if row.next_run_at > (end or now):
                due_at.setdefault(end, []).append(row.id)
        for end, ids in due_at.items():
            _set_due(session, ids, due_at=end or now, is_held=end is not None)


@cache
def _lock_held_statement(waits: bool) -> Select[Any]:  # noqa: FBT001 - a key of the cache
    columns = SCHEDULES.c
    # The read locks rows, because the caller's snapshot may be older than the claim that held the
    # rows.
    held = (
        select(columns.id, columns.name)
        .where(
            columns.owner == bindparam("owner"),
            columns.name > bindparam("after"),
            columns.held_at.is_not(None),
            columns.next_run_at > bindparam("due_at", type_=UtcDateTime),
        )
        .order_by(columns.name)
        .limit(MAX_IN_LIST)
        .with_for_update(skip_locked=not waits)
    )
    return force_index(held, SCHEDULES, OWNER_NAME_INDEX)


def _set_due(session: Session, ids: Sequence[int], *, due_at: datetime, is_held: bool) -> None:
    values: dict[str, Any] = {"next_run_at": due_at}
    if not is_held:
        values["held_at"] = None
    execute_dml(session, _update_schedules().where(Schedule.id.in_(ids)).values(values))


def _update_schedules() -> Update:
    return force_index(update(Schedule), SCHEDULES, _PRIMARY)


@in_index_order
def held_after(
    session: Session, *, after: tuple[datetime, int] | None, limit: int
) -> Sequence[Row]:
    """Return id, owner, held_at and next_run_at of up to ``limit`` held schedules, not locked.

    They are ordered by held_at and id, and follow the key ``after``.
    """
    columns = SCHEDULES.c
    key = (columns.held_at, columns.id)
    statement = (
        force_index(
            select(columns.id, columns.owner, columns.held_at, columns.next_run_at),
            SCHEDULES,
            _HELD_INDEX,
        )
        .where(columns.held_at.is_not(None))
        .order_by(*key)
        .limit(limit)
    )
    if after is not None:
        row_after = capabilities_of(session.get_bind(Schedule).dialect).row_after
        statement = statement.where(row_after(key, after))
    return read(session, statement)


@in_index_order
def lock_held(session: Session, ids: Collection[int]) -> Sequence[int]:
    """Lock the held schedules among these ids for this transaction, and return their ids.

    Schedules that another transaction has locked are left out.
    """
    held = force_index(select(Schedule.id), Schedule, _PRIMARY)
    held = held.where(Schedule.id.in_(ids), Schedule.held_at.is_not(None))
    return session.scalars(held.with_for_update(skip_locked=True)).all()


def clear_held(session: Session, ids: Collection[int]) -> None:
    """Clear ``held_at`` of locked schedules that have no next run."""
    forgotten = _update_schedules().where(Schedule.id.in_(ids), Schedule.next_run_at.is_(None))
    execute_dml(session, forgotten.values(held_at=None))


def page_of_owner(
    session: Session, *, owner: str, after_id: int, limit: int
) -> list[Mapping[str, Any]]:
    """Return the next holds of ``owner`` by id, for an export."""
    statement = force_index(select(*Hold.__table__.c), Hold, OWNER_INDEX)
    statement = statement.where(Hold.owner == owner, Hold.id > after_id)
    rows = session.execute(statement.order_by(Hold.id).limit(limit)).mappings()
    return [dict(row) for row in rows]
