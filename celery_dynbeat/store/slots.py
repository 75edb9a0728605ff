"""Queries on slots: which runs wait because their owner has reached a limit, and which were sent.

Beats lock the row of a scope, count its slots, and admit runs. No other process locks rows of these
tables for longer than a statement, except for the deletion of an owner's data: those rows are
skipped.

Many slots may belong to owners without waiting runs. Their rows are not read:

- Each group has a separate statement, because PostgreSQL has no index condition with OR.
- On PostgreSQL and SQLite, one partial index contains the waiting runs, and one the others. Each
  statement therefore needs a condition on ``admitted_at``.
- MySQL has no partial indexes. There, the index of the waiting runs begins with ``admitted_at``.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    bindparam,
    case,
    delete,
    func,
    literal,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from celery_dynbeat.common.states import Status
from celery_dynbeat.common.text import is_group
from celery_dynbeat.db import statements
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import Run, Schedule
from celery_dynbeat.db.slot_models import SLOT_SCOPES, SLOTS, Slot, SlotScope
from celery_dynbeat.db.statements import force_index, in_index_order
from celery_dynbeat.store.owners import is_of, with_rows
from celery_dynbeat.store.runs import (
    MAX_IN_LIST,
    UNFINISHED_INDEX,
    execute_dml,
    is_unfinished_of,
    lock_free,
)

#: Waiting runs that are counted.
MAX_COUNTED = 10_000
_WAITING_INDEX = "ix_dynbeat_slot_waiting"
#: Waiting runs that one statement reads on MySQL, to find their owners.
_PAGE = 500
_WAITS = SLOTS.c.admitted_at.is_(None)


def add(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    """Let new runs wait: id, run_id, owner, is_requested, expires_at, admitted_at.

    ``id`` is the place of a run, or None for the end.
    """
    connection = session.connection(bind_arguments={"mapper": Run})
    others = [
        {name: value for name, value in row.items() if name != "id"}
        for row in rows
        if row["id"] is None
    ]
    for part in ([row for row in rows if row["id"] is not None], others):
        statements.insert(connection, SLOTS, part)


@in_index_order
def free_places(session: Session, schedule_ids: Sequence[int]) -> Mapping[int, int]:
    """Delete the slot of the oldest waiting run of each schedule, which a new run replaces.

    Return the ids of these slots by schedule, for the slots of the new runs. The schedules and
    their unfinished runs must be locked. A slot that another transaction has locked stays.
    """
    # Runs of backfills and of reruns of many have their own line.
    replaced = (Slot.admitted_at.is_(None), Slot.is_requested.is_(False))
    places = force_index(select(Run.schedule_id, func.min(Slot.id)), Run, UNFINISHED_INDEX)
    places = places.join(Slot, Slot.run_id == Run.id).where(
        is_unfinished_of(session, schedule_ids), *replaced
    )
    rows: Sequence[Any] = session.execute(places.group_by(Run.schedule_id)).all()
    slot_of: dict[int, int] = dict(rows)
    free = set(delete_slots(session, list(slot_of.values())))
    return {schedule_id: slot_id for schedule_id, slot_id in slot_of.items() if slot_id in free}


def expires_after(session: Session, schedule_ids: Collection[int]) -> Mapping[int, float | None]:
    """Return the seconds of ``expires_after`` by schedule."""
    found: dict[int, float | None] = {}
    for part in statements.in_parts(sorted(schedule_ids), MAX_IN_LIST):
        rows = session.execute(
            select(Schedule.id, Schedule.expires_after).where(Schedule.id.in_(part))
        )
        found.update((row.id, row.expires_after) for row in rows)
    return found


def waiting_owners(
    session: Session, *, after: str, limit: int, within: str | None = None
) -> Sequence[str]:
    """Return up to ``limit`` owners above ``after`` with waiting runs, in order.

    ``within`` is a group: only its owners count.
    """
    if not capabilities_of(session.get_bind(Schedule).dialect).has_partial_indexes:
        return _waiting_owners_in_pages(session, after=after, limit=limit, within=within)
    return with_rows(
        session,
        SLOTS.c.owner,
        _WAITING_INDEX,
        within=within,
        after=after,
        limit=limit,
        condition=_WAITS,
    )


def _waiting_owners_in_pages(
    session: Session, *, after: str, limit: int, within: str | None
) -> Sequence[str]:
    """Do the same on MySQL, one page of waiting runs after another.

    An owner may have many waiting runs. The next page begins with the next owner.
    """
    # MySQL could skip to the next owner by itself, but only in an index that begins with the owner.
    # Such an index also contains the owners whose runs do not wait.
    read = force_index(select(SLOTS.c.owner), SLOTS, _WAITING_INDEX).where(_WAITS)
    if within is not None:
        read = read.where(is_of(SLOTS.c.owner, within))
    read = read.order_by(SLOTS.c.owner).limit(_PAGE)
    found: dict[str, None] = {}
    while len(found) < limit:
        page = session.scalars(read.where(SLOTS.c.owner > after)).all()
        found.update(dict.fromkeys(page))
        if len(page) < _PAGE:
            break
        after = page[-1]
    return list(found)[:limit]


def lock_scopes(session: Session, names: Collection[str]) -> Mapping[str, str]:
    """Lock the scopes that no other beat has locked, and return their last owners by name."""
    wanted = sorted(names)
    if not wanted:
        return {}
    present = select(SLOT_SCOPES.c.name).where(SLOT_SCOPES.c.name.in_(wanted))
    missing = sorted(set(wanted).difference(session.scalars(present)))
    if missing:
        connection = session.connection(bind_arguments={"mapper": Run})
        statements.insert_new(connection, SLOT_SCOPES, [{"name": name} for name in missing])
    return _lock_scopes(session, wanted)


def _lock_scopes(session: Session, names: Sequence[str]) -> Mapping[str, str]:
    # InnoDB locks each row that it scans, and prefers to scan a small table.
    free = force_index(select(SLOT_SCOPES.c.name, SLOT_SCOPES.c.last_owner), SLOT_SCOPES, "PRIMARY")
    free = free.where(SLOT_SCOPES.c.name.in_(names)).with_for_update(skip_locked=True)
    return {row.name: row.last_owner for row in session.execute(free)}


def set_last_owner(session: Session, *, scope: str, owner: str) -> None:
    """Store which owner of a locked scope got the last slot."""
    changed = update(SlotScope).where(SlotScope.name == scope).values(last_owner=owner)
    execute_dml(session, changed)


class AdmittedSlot(NamedTuple):
    """A slot in use, or one whose run has ended.

    ``lost_at`` is when the run became ``lost``, which has ended, but may still run again.
    """

    id: int
    owner: str
    admitted_at: datetime
    has_ended: bool
    lost_at: datetime | None


# A run without a row has ended.
_HAS_ENDED = or_(Run.id.is_(None), Run.finished_at.is_not(None))
_LOST_AT = case((Run.status == Status.LOST, Run.finished_at))


@in_index_order
def admitted(session: Session, names: Collection[str]) -> Sequence[AdmittedSlot]:
    """Return the admitted slots of owners and groups."""
    columns = (Slot.id, Slot.owner, Slot.admitted_at, _HAS_ENDED, _LOST_AT)
    statement = select(*columns).outerjoin(Run, Run.id == Slot.run_id)
    statement = statement.where(Slot.admitted_at.is_not(None))
    groups = [name for name in names if is_group(name)]
    alone = sorted(set(names).difference(groups))
    conditions: list[ColumnElement[bool]] = [Slot.owner.in_(alone)] if alone else []
    conditions += [is_of(Slot.owner, group) for group in groups]
    rows = [row for each in conditions for row in session.execute(statement.where(each))]
    # A group may contain others of the names.
    return list({row[0]: AdmittedSlot(*row) for row in rows}.values())


class WaitingRun(NamedTuple):
    """A slot that is not admitted, with what decides about its run.

    ``waits`` is false if the run was revoked or deleted in the meantime. ``is_requested`` is true
    for the runs of backfills and of reruns of many.
    """

    slot_id: int
    run_id: str
    is_requested: bool
    created_at: datetime | None
    schedule_id: int | None
    origin: str | None
    expires_after: float | None
    overlap: str | None
    max_run_time: float | None
    waits: bool


_RUN_WAITS = and_(Run.status == Status.PENDING, Run.overdue_at.is_(None))
_COLUMNS: tuple[Any, ...] = (
    Slot.id,
    Slot.run_id,
    Slot.is_requested,
    Run.created_at,
    Run.schedule_id,
    Run.origin,
    Schedule.expires_after,
    Schedule.overlap,
    Schedule.max_run_time,
    func.coalesce(_RUN_WAITS, literal(value=False)),
)


def _waiting(index: str) -> Select[Any]:
    joined = force_index(select(*_COLUMNS), Slot, index).outerjoin(Run, Run.id == Slot.run_id)
    joined = joined.outerjoin(Schedule, Schedule.id == Run.schedule_id)
    return joined.where(Slot.admitted_at.is_(None))


@in_index_order
def oldest_waiting(session: Session, *, owner: str, limit: int) -> Sequence[WaitingRun]:
    """Return the first waiting runs of an owner, without locks.

    Backfills and reruns of many come after the others. Otherwise the oldest comes first.
    """
    waiting = _waiting(_WAITING_INDEX).where(Slot.owner == owner)
    first = waiting.order_by(Slot.owner, Slot.is_requested, Slot.id).limit(limit)
    return [WaitingRun(*row) for row in session.execute(first)]


@in_index_order
def lock_expiring(session: Session, *, now: datetime, limit: int) -> Sequence[WaitingRun]:
    """Return up to ``limit`` waiting runs that were to expire by ``now``, with locked slots.

    Slots that another transaction has locked are skipped.
    """
    expiring = force_index(select(Slot.id), Slot, "ix_dynbeat_slot_expires_at")
    expiring = expiring.where(Slot.admitted_at.is_(None), Slot.expires_at <= now)
    found = session.scalars(expiring.order_by(Slot.expires_at).limit(limit)).all()
    ids = _lock(session, found)
    if not ids:
        return ()
    rows = session.execute(_waiting("PRIMARY").where(Slot.id.in_(ids)))
    return [WaitingRun(*row) for row in rows]


def _lock(session: Session, ids: Sequence[int]) -> Sequence[int]:
    """Lock the slots that no other transaction has locked; return their ids."""
    if not ids:
        return ()
    free = force_index(select(SLOTS.c.id), SLOTS, "PRIMARY").where(SLOTS.c.id.in_(ids))
    return session.scalars(free.with_for_update(skip_locked=True)).all()


def set_expiry(session: Session, *, slot_id: int, expires_at: datetime | None) -> None:
    """Store when the run of a locked slot expires, because its schedule was edited."""
    changed = update(Slot).where(Slot.id == slot_id).values(expires_at=expires_at)
    execute_dml(session, changed)


def free_waiting(session: Session, run_ids: Sequence[str]) -> Sequence[str]:
    """Lock the runs that still wait; return them without those that others have locked."""
    free: set[str] = set()
    for part in statements.in_parts(run_ids, MAX_IN_LIST):
        locked = lock_free(session, part)
        still = select(Run.id).where(Run.id.in_(locked), _RUN_WAITS)
        free.update(session.scalars(still) if locked else ())
    return [run_id for run_id in run_ids if run_id in free]


def admit(session: Session, run_ids: Sequence[str], *, now: datetime) -> None:
    """Give slots to locked waiting runs: they are overdue, so the sweep publishes them."""
    for part in statements.in_parts(run_ids, MAX_IN_LIST):
        execute_dml(session, update(Run).where(Run.id.in_(part)).values(overdue_at=now))
        admitted = update(Slot).where(Slot.run_id.in_(part))
        execute_dml(session, admitted.values(admitted_at=now, expires_at=None))


def delete_slots(session: Session, ids: Sequence[int]) -> Sequence[int]:
    """Delete slots, except those that another transaction has locked; return the deleted ids."""
    deleted: list[int] = []
    for part in statements.in_parts(ids, MAX_IN_LIST):
        free = _lock(session, part)
        if free:
            connection = session.connection(bind_arguments={"mapper": Run})
            capabilities_of(connection.dialect).delete(connection, SLOTS, free)
            deleted += free
    return deleted


def admitted_at(session: Session, *, run_ids: Sequence[str]) -> Mapping[str, datetime]:
    """Return when runs got their slots, by id. Runs that needed none are left out."""
    found: dict[str, datetime] = {}
    for part in statements.in_parts(run_ids, MAX_IN_LIST):
        admitted = select(SLOTS.c.run_id, SLOTS.c.admitted_at).where(SLOTS.c.run_id.in_(part))
        rows = session.execute(admitted.where(SLOTS.c.admitted_at.is_not(None)))
        found |= {row.run_id: row.admitted_at for row in rows}
    return found


class PrunableSlot(NamedTuple):
    """What decides whether a slot is pruned. ``admitted_at`` is None for a waiting run."""

    id: int
    admitted_at: datetime | None
    has_ended: bool
    lost_at: datetime | None


@in_index_order
def read_page(session: Session, *, after: int, limit: int) -> Sequence[PrunableSlot]:
    """Return up to ``limit`` slots above the id ``after``, in order."""
    page = force_index(select(Slot.id, Slot.admitted_at, _HAS_ENDED, _LOST_AT), Slot, "PRIMARY")
    page = page.outerjoin(Run, Run.id == Slot.run_id).where(Slot.id > after)
    return [PrunableSlot(*row) for row in session.execute(page.order_by(Slot.id).limit(limit))]


@in_index_order
def delete_unused_scopes(session: Session, *, after: str, limit: int) -> str | None:
    """Read the next ``limit`` scopes above ``after``, and delete those that are not needed.

    Return the last name, or None at the end. A scope that another beat has locked stays. The next
    admission inserts a deleted scope again, so only a group must stay while it has slots: its row
    stores which of its owners is next.
    """
    page = select(SLOT_SCOPES.c.name).where(SLOT_SCOPES.c.name > after)
    names = session.scalars(page.order_by(SLOT_SCOPES.c.name).limit(limit)).all()
    unused = [name for name in names if not is_group(name) or not _has_slots(session, name)]
    for name in sorted(_lock_scopes(session, unused)) if unused else ():
        # One after another: for a list, InnoDB prefers to scan a small table, and waits for each
        # locked row.
        execute_dml(session, delete(SlotScope).where(SlotScope.name == name))
    return names[-1] if len(names) == limit else None


def _has_slots(session: Session, group: str) -> bool:
    of_group = select(SLOTS.c.id).where(is_of(SLOTS.c.owner, group)).limit(1)
    # One statement for each partial index.
    found = (of_group.where(condition) for condition in (_WAITS, not_(_WAITS)))
    return any(session.scalar(each) is not None for each in found)


@in_index_order
def count_waiting(session: Session, owner: str | None = None) -> int:
    """Return the number of waiting runs of an owner or a group, at most MAX_COUNTED.

    None counts the runs of all owners.
    """
    waiting = select(Slot.id).join(Run, Run.id == Slot.run_id)
    waiting = waiting.where(Slot.admitted_at.is_(None), _RUN_WAITS)
    if owner is not None:
        waiting = waiting.where(is_of(Slot.owner, owner))
    counted = select(func.count()).select_from(waiting.limit(MAX_COUNTED).subquery())
    return session.scalar(counted) or 0


def is_waiting(session: Session, *, run_id: str) -> bool:
    """Return whether the run waits for a slot."""
    waiting = select(SLOTS.c.id).where(SLOTS.c.run_id == bindparam("run_id"), _WAITS)
    return session.scalar(waiting, {"run_id": run_id}) is not None
