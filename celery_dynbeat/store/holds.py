"""Queries on holds. A hold is in force until it is released, or until ``until_at``.

    hold()            inserts the row of its scope, or replaces its values; no schedule changes
    claim             moves the due schedules of a held owner out of the start of the due index
    release()         deletes the row, and makes the held schedules due
    until_at passes   the held schedules are due by themselves
    maintenance       deletes expired rows, and repairs schedules that are held without a hold

A scope is an owner, or everything. Unique keys allow one row for each scope.

A schedule is held if it has ``held_at``. A claim that sets it locks the owner's hold in share mode,
so two beats do not stop each other. A release that deletes the hold waits for these claims, so its
UPDATE finds the held schedules. The claim does not wait. If a transaction that may be a release has
locked the hold, the claim holds the schedule only for a short time.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    Subquery,
    Update,
    bindparam,
    case,
    exists,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from celery_dynbeat.common.infos import BoundedCount
from celery_dynbeat.common.states import Wait
from celery_dynbeat.db import statements
from celery_dynbeat.db.models import HOLDS, SCHEDULES, Hold, Run, Schedule
from celery_dynbeat.db.statements import Row, capabilities_in, force_index, read
from celery_dynbeat.store.runs import MAX_IN_LIST, execute_dml
from celery_dynbeat.store.span_reads import Span, read_spans, within_span

#: ``next_run_at`` of a schedule whose hold has no end. Each database and driver can store it.
NEVER = datetime(9999, 1, 1, tzinfo=UTC)
#: Rows of schedules of a hold, and of all runs that wait, that the counts of holds read.
COUNT_LIMIT = 10_000

# Locking reads name their index, because InnoDB locks each row that it scans.
OWNER_NAME_INDEX = "uq_dynbeat_schedule_owner_name"
_HOLD = HOLDS.c
#: The ends of the holds of some owners.
_ENDS = select(_HOLD.id, _HOLD.owner, _HOLD.until_at)


@dataclass(frozen=True, slots=True)
class Ends:
    """The ends of the holds of some owners; ``NEVER`` for a hold without an end.

    ``at`` has an entry for each owner with a hold in force. ``unsure`` are the owners with a hold
    that another transaction changes: a release that is not committed, for example.
    """

    at: Mapping[str, datetime]
    unsure: frozenset[str]


def _in_force(now: Any) -> ColumnElement[bool]:
    return or_(_HOLD.until_at.is_(None), _HOLD.until_at > now)


def _of_scope(owner: str | None) -> Select[Any]:
    """Return the SELECT of the hold of an owner, or of everything, in force or not."""
    if owner is None:
        return select(Hold).where(_HOLD.everything)
    return select(Hold).where(Hold.owner == owner)


def everything_is_held(now: Any) -> ColumnElement[bool]:
    """Return the condition that a hold of everything is in force."""
    return _exists_of_everything(_in_force(now))


def everything_is_held_without_end() -> ColumnElement[bool]:
    """Return the condition that the hold of everything has no end."""
    return _exists_of_everything(_HOLD.until_at.is_(None))


def _exists_of_everything(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    hold = select(_HOLD.id)
    return exists(hold.where(_HOLD.everything, condition))


def end_of_everything(now: Any) -> Any:
    """Return a subquery for the end of the hold of everything, NULL if there is none."""
    end = select(_HOLD.until_at)
    return end.where(_HOLD.everything, _HOLD.until_at > now).scalar_subquery()


def lock_ends(session: Session, owners: Collection[str], *, now: datetime) -> Ends:
    """Return the ends of the holds of ``owners``, locked in share mode for this transaction."""
    of_owners = _ENDS.where(_HOLD.owner.in_(owners), _in_force(now))
    present = session.execute(of_owners.with_only_columns(_HOLD.id, _HOLD.owner)).all()
    share_unlocked = capabilities_in(session).share_unlocked
    locked = read(session, share_unlocked(of_owners))
    locked_ids = {row.id for row in locked}
    unsure = frozenset(row.owner for row in present if row.id not in locked_ids)
    return Ends(_ends_by_owner(locked), unsure)


def ends_of(session: Session, owners: Collection[str], *, now: datetime) -> Mapping[str, datetime]:
    """Return when the holds of these owners end, without a lock.

    Owners that are not held are left out.
    """
    return _ends_by_owner(read(session, _ENDS.where(_HOLD.owner.in_(owners), _in_force(now))))


def held_of(session: Session, owners: Collection[str], *, now: datetime) -> frozenset[str]:
    """Return which of these owners are held, by a hold of themselves or of everything."""
    return frozenset(ends_with_everything(session, owners, now=now)) if owners else frozenset()


def ends_with_everything(
    session: Session, owners: Collection[str], *, now: datetime
) -> Mapping[str, datetime]:
    """Return when the holds of these owners end, also with the hold of everything.

    Owners that are not held are left out.
    """
    ends = ends_of(session, owners, now=now)
    of_everything = end_of(session, owner=None, now=now)
    if of_everything is None:
        return ends
    return {owner: max(of_everything, ends.get(owner, of_everything)) for owner in owners}


def _ends_by_owner(rows: Sequence[Row]) -> Mapping[str, datetime]:
    return {row.owner: row.until_at or NEVER for row in rows}


def end_of(session: Session, *, owner: str | None, now: datetime) -> datetime | None:
    """Return when the holds of the owner and of everything end, or None without a hold in force.

    ``owner=None`` means only the hold of everything. ``NEVER`` is a hold without an end.
    """
    found = in_force(session, owner=owner, now=now)
    return max((hold.until_at or NEVER for hold in found), default=None)


def in_force(session: Session, *, owner: str | None, now: datetime) -> Sequence[Hold]:
    """Return the holds in force that hold ``owner``: of everything, and then of the owner.

    ``owner=None`` means only the hold of everything.
    """
    scopes = (None,) if owner is None else (None, owner)
    found = (session.scalar(_of_scope(scope).where(_in_force(now))) for scope in scopes)
    return [hold for hold in found if hold is not None]


def lock(session: Session, *, owner: str | None) -> Hold | None:
    """Return the locked hold of an owner, or of everything, in force or not; None without one."""
    locked = _of_scope(owner).with_for_update().execution_options(populate_existing=True)
    hold: Hold | None = session.scalar(locked)
    return hold


def of_owners(session: Session, *, now: datetime, limit: int) -> Sequence[Hold]:
    """Return up to ``limit`` holds in force of any owner, not of everything; the oldest first."""
    statement = select(Hold).where(Hold.owner.is_not(None), _in_force(now)).order_by(Hold.id)
    return session.scalars(statement.limit(limit)).all()


def page(session: Session, *, now: datetime, after: int, limit: int) -> Sequence[Hold]:
    """Return up to ``limit`` holds in force with an id above ``after``, the oldest first."""
    statement = select(Hold).where(Hold.id > after, _in_force(now))
    statement = statement.order_by(Hold.id)
    return session.scalars(statement.limit(limit)).all()


def add(session: Session, *, owner: str | None, values: Mapping[str, Any]) -> bool:
    """Insert a hold. Return False if another transaction has inserted one of this scope."""
    row = {"owner": owner, "everything": True if owner is None else None, **values}
    return statements.insert_new(session, HOLDS, [row]) == 1


def delete_ids(session: Session, ids: Sequence[int]) -> int:
    """Delete locked holds and return their number."""
    return statements.delete_ids(session, HOLDS, ids)


def delete_of_owner(session: Session, *, owner: str) -> int:
    """Delete the hold of an owner and return the number of holds, 0 or 1."""
    # The DELETE does not name the owner, because MySQL has no index hint for it.
    ids = select(Hold.id).where(Hold.owner == owner)
    return delete_ids(session, session.scalars(ids.with_for_update()).all())


def count_schedules(session: Session, rows: Sequence[Hold]) -> Mapping[int, BoundedCount]:
    """Return how many schedules with a next run each of these holds stops, by the id of the hold.

    At most COUNT_LIMIT schedules are read for each hold.
    """
    values, found = {"row_limit": COUNT_LIMIT + 1}, {}
    owned = [row.id for row in rows if row.owner is not None]
    spans = [Span(hold_id, hold_id + 1) for hold_id in owned]
    for each in read_spans(session, _count_of_owner, spans, key=Hold.id, values=values):
        found[owned[each.number]] = _counted(each)
    for row in rows:
        if row.owner is None:
            at = SCHEDULES.c.next_run_at
            every = select(at).where(at.is_not(None))
            counts = _counts(every.limit(COUNT_LIMIT + 1).subquery())
            found[row.id] = _counted(session.execute(counts, bind_arguments=statements.BIND).one())
    return found


def _count_of_owner(number: Any, start: Any, end: Any) -> Select[Any]:
    columns = SCHEDULES.c
    owner = select(_HOLD.owner).where(_HOLD.id == start, start < end)
    of_owner = (
        select(columns.next_run_at)
        .where(columns.owner == within_span(owner, start).scalar_subquery())
        .limit(bindparam("row_limit", type_=Integer))
    )
    return _counts(within_span(of_owner, start).subquery()).add_columns(number.label("number"))


def _counts(some: Subquery) -> Select[Any]:
    held: Any = func.count(some.c.next_run_at).label("held")
    return select(func.count().label("read_rows"), held).select_from(some)


def _counted(row: Row) -> BoundedCount:
    return BoundedCount(count=row.held, exact=row.read_rows <= COUNT_LIMIT).cut(COUNT_LIMIT)


def count_waiting_runs(session: Session) -> tuple[Mapping[str, int], bool]:
    """Return by owner how many runs wait for the end of a hold, and whether more may wait.

    At most COUNT_LIMIT of the runs of all owners that are not sent are read.
    """
    unsent = (
        select(Run.owner, Run.waited_for)
        .where(Run.overdue_at.is_not(None))
        .limit(COUNT_LIMIT + 1)
        .subquery()
    )
    held = func.count(case((unsent.c.waited_for == Wait.HOLD, 1)))
    counts = select(unsent.c.owner, func.count(), held).group_by(unsent.c.owner)
    rows = session.execute(counts, bind_arguments=statements.BIND).all()
    return {row[0]: row[2] for row in rows}, sum(row[1] for row in rows) > COUNT_LIMIT


def delete_expired(session: Session, *, now: datetime, limit: int) -> int:
    """Delete up to ``limit`` holds that have ended. Locked ones are skipped."""
    expired = (
        select(_HOLD.id)
        .where(_HOLD.until_at.is_not(None), _HOLD.until_at <= now)
        .order_by(_HOLD.until_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return delete_ids(session, session.scalars(expired).all())


def move_held(
    session: Session, *, owner: str, now: datetime, end: datetime | None, waits: bool = True
) -> None:
    """Make the held schedules of an owner due at ``end``, the end of its holds.

    ``end=None`` means that no hold is in force, so the schedules are due at ``now``. Schedules that
    are due earlier do not change. The rows are read in the order of their names, in parts. Unless
    it ``waits``, schedules that another transaction has locked are left out.
    """
    due_at, columns = end or now, SCHEDULES.c
    # The read locks rows, because the caller's snapshot may be older than the claim that held the
    # rows.
    held = force_index(select(columns.id, columns.name), SCHEDULES, OWNER_NAME_INDEX).where(
        columns.owner == owner, columns.held_at.is_not(None), columns.next_run_at > due_at
    )
    held = held.order_by(columns.name).limit(MAX_IN_LIST).with_for_update(skip_locked=not waits)
    values: dict[str, Any] = {"next_run_at": due_at}
    if end is None:
        values["held_at"] = None
    after = ""
    while rows := read(session, held.where(columns.name > after)):
        after = rows[-1].name
        moved = _update_schedules().where(Schedule.id.in_([row.id for row in rows]))
        execute_dml(session, moved.values(values))


def _update_schedules() -> Update:
    return force_index(update(Schedule), SCHEDULES, "PRIMARY")


def held_after(
    session: Session, *, after: tuple[datetime, int] | None, limit: int
) -> Sequence[Row]:
    """Return id, owner, held_at and next_run_at of up to ``limit`` held schedules, not locked.

    They are ordered by held_at and id, and follow the key ``after``.
    """
    columns = SCHEDULES.c
    key = (columns.held_at, columns.id)
    statement = (
        select(columns.id, columns.owner, columns.held_at, columns.next_run_at)
        .where(columns.held_at.is_not(None))
        .order_by(*key)
        .limit(limit)
    )
    if after is not None:
        row_after = capabilities_in(session).row_after
        statement = statement.where(row_after(key, after))
    return read(session, statement)


def lock_held(session: Session, ids: Collection[int]) -> Sequence[int]:
    """Lock the held schedules among these ids for this transaction, and return their ids.

    Schedules that another transaction has locked are left out.
    """
    held = force_index(select(Schedule.id), Schedule, "PRIMARY")
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
    statement = select(*Hold.__table__.c)
    statement = statement.where(Hold.owner == owner, Hold.id > after_id)
    rows = session.execute(statement.order_by(Hold.id).limit(limit)).mappings()
    return [dict(row) for row in rows]


def is_everything_held(session: Session, *, now: datetime | None) -> bool:
    """Return whether a hold of everything is in force."""
    return bool(session.scalar(select(everything_is_held(now))))
