"""Queries on slots: which runs wait because their owner has reached a limit, and which were sent.

Beats lock the row of a scope, count its slots, and admit runs. No other process locks rows of these
tables for longer than a statement, except for the deletion of an owner's data: those rows are
skipped.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    bindparam,
    delete,
    func,
    literal,
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
from celery_dynbeat.store.owners import is_of
from celery_dynbeat.store.runs import MAX_IN_LIST, execute_dml, lock_free

#: Waiting runs that are counted.
MAX_COUNTED = 10_000
_WAITING_INDEX = "ix_dynbeat_slot_waiting"
_WAITS = SLOTS.c.admitted_at.is_(None)


def add(session: Session, rows: Iterable[Mapping[str, Any]]) -> None:
    """Let the new runs of ``rows`` wait: run_id, owner, expires_at."""
    connection = session.connection(bind_arguments={"mapper": Run})
    statements.insert(connection, SLOTS, list(rows))


def expires_after(session: Session, schedule_ids: Collection[int]) -> Mapping[int, float | None]:
    """Return the seconds of ``expires_after`` by schedule."""
    found: dict[int, float | None] = {}
    for part in statements.in_parts(sorted(schedule_ids), MAX_IN_LIST):
        rows = session.execute(
            select(Schedule.id, Schedule.expires_after).where(Schedule.id.in_(part))
        )
        found.update((row.id, row.expires_after) for row in rows)
    return found


@in_index_order
def waiting_owners(session: Session, *, after: str, limit: int) -> Sequence[str]:
    """Return up to ``limit`` owners above ``after`` with waiting runs, in order.

    Reads one index entry for each owner, not one for each run.
    """
    owner = SLOTS.c.owner
    if not capabilities_of(session.get_bind(Run).dialect).has_partial_indexes:
        # MySQL skips to the next owner in the index by itself, and not in a recursive query.
        grouped = force_index(select(owner), SLOTS, _WAITING_INDEX).where(_WAITS, owner > after)
        return session.scalars(grouped.group_by(owner).order_by(owner).limit(limit)).all()

    def next_owner(condition: ColumnElement[bool]) -> Any:
        first = force_index(select(owner), SLOTS, _WAITING_INDEX).where(_WAITS, condition)
        first = first.order_by(owner).limit(1)
        return first.scalar_subquery()

    found = select(next_owner(owner > after).label("owner"), literal(1).label("number"))
    cte = found.cte("waiting", recursive=True)
    following = select(next_owner(owner > cte.c.owner), cte.c.number + 1)
    cte = cte.union_all(following.where(cte.c.owner.is_not(None), cte.c.number < limit))
    return session.scalars(select(cte.c.owner).where(cte.c.owner.is_not(None))).all()


def lock_scopes(session: Session, names: Collection[str]) -> Mapping[str, str]:
    """Lock the scopes that no other beat has locked, and return their last owners by name."""
    wanted = sorted(names)
    present = select(SLOT_SCOPES.c.name).where(SLOT_SCOPES.c.name.in_(wanted))
    missing = sorted(set(wanted).difference(session.scalars(present)))
    if missing:
        connection = session.connection(bind_arguments={"mapper": Run})
        statements.insert_new(connection, SLOT_SCOPES, [{"name": name} for name in missing])
    free = select(SLOT_SCOPES.c.name, SLOT_SCOPES.c.last_owner)
    free = free.where(SLOT_SCOPES.c.name.in_(wanted)).with_for_update(skip_locked=True)
    return {row.name: row.last_owner for row in session.execute(free)}


def set_last_owner(session: Session, *, scope: str, owner: str) -> None:
    """Store which owner of a locked scope got the last slot."""
    changed = update(SlotScope).where(SlotScope.name == scope).values(last_owner=owner)
    execute_dml(session, changed)


def delete_scopes(session: Session, names: Collection[str]) -> None:
    """Delete locked scopes that have no waiting runs."""
    if names:
        execute_dml(session, delete(SlotScope).where(SlotScope.name.in_(names)))


class AdmittedSlot(NamedTuple):
    """A slot in use, or one whose run has ended."""

    id: int
    owner: str
    admitted_at: datetime
    has_ended: bool


@in_index_order
def admitted(session: Session, names: Iterable[str]) -> Sequence[AdmittedSlot]:
    """Return the admitted slots of owners and groups. A run without a row has ended."""
    ended = or_(Run.id.is_(None), Run.finished_at.is_not(None)).label("has_ended")
    statement = select(Slot.id, Slot.owner, Slot.admitted_at, ended).outerjoin(
        Run, Run.id == Slot.run_id
    )
    wanted = statement.where(Slot.admitted_at.is_not(None), _is_of_any(names))
    rows: Sequence[Any] = session.execute(wanted).all()
    return [AdmittedSlot(*row) for row in rows]


def _is_of_any(names: Iterable[str]) -> ColumnElement[bool]:
    alone: list[str] = []
    groups: list[ColumnElement[bool]] = []
    for name in names:
        if is_group(name):
            groups.append(is_of(Slot.owner, name))
        else:
            alone.append(name)
    return or_(Slot.owner.in_(alone), *groups)


class WaitingRun(NamedTuple):
    """A waiting run, with what decides about its expiry."""

    slot_id: int
    run_id: str
    created_at: datetime | None
    expires_after: float | None
    waits: bool


_COLUMNS: tuple[Any, ...] = (
    Slot.id,
    Slot.run_id,
    Run.created_at,
    Schedule.expires_after,
    func.coalesce(
        and_(Run.status == Status.PENDING, Run.overdue_at.is_(None)), literal(value=False)
    ),
)


def _waiting(index: str) -> Select[Any]:
    joined = force_index(select(*_COLUMNS), Slot, index).outerjoin(Run, Run.id == Slot.run_id)
    joined = joined.outerjoin(Schedule, Schedule.id == Run.schedule_id)
    return joined.where(Slot.admitted_at.is_(None))


@in_index_order
def oldest_waiting(session: Session, *, owner: str, limit: int) -> Sequence[WaitingRun]:
    """Return the oldest waiting runs of an owner, without locks."""
    statement = (
        _waiting(_WAITING_INDEX)
        .where(Slot.owner == owner)
        .order_by(Slot.owner, Slot.id)
        .limit(limit)
    )
    return [WaitingRun(*row) for row in session.execute(statement)]


@in_index_order
def expiring(session: Session, *, now: datetime, limit: int) -> Sequence[WaitingRun]:
    """Return up to ``limit`` waiting runs that were to expire by ``now``, without locks."""
    statement = (
        _waiting("ix_dynbeat_slot_expires_at")
        .where(Slot.expires_at <= now)
        .order_by(Slot.expires_at)
        .limit(limit)
    )
    return [WaitingRun(*row) for row in session.execute(statement)]


def set_expiry(session: Session, *, slot_id: int, expires_at: datetime | None) -> None:
    """Store when a waiting run expires, because its schedule was edited."""
    changed = update(Slot).where(Slot.id == slot_id).values(expires_at=expires_at)
    execute_dml(session, changed)


def free_waiting(session: Session, run_ids: Sequence[str]) -> Sequence[str]:
    """Lock the runs that still wait; return them without those that others have locked."""
    free: set[str] = set()
    for part in statements.in_parts(run_ids, MAX_IN_LIST):
        free.update(lock_free(session, part))
    if not free:
        return ()
    waits = (Run.status == Status.PENDING, Run.overdue_at.is_(None))
    still = set(session.scalars(select(Run.id).where(Run.id.in_(free), *waits)))
    return [run_id for run_id in run_ids if run_id in still]


def admit(session: Session, run_ids: Sequence[str], *, now: datetime) -> None:
    """Give slots to locked waiting runs: they are overdue, so the sweep publishes them."""
    for part in statements.in_parts(run_ids, MAX_IN_LIST):
        execute_dml(session, update(Run).where(Run.id.in_(part)).values(overdue_at=now))
        admitted = update(Slot).where(Slot.run_id.in_(part))
        execute_dml(session, admitted.values(admitted_at=now))


def delete_slots(session: Session, ids: Sequence[int]) -> None:
    """Delete slots, except those that another transaction has locked."""
    for part in statements.in_parts(ids, MAX_IN_LIST):
        free = select(Slot.id).where(Slot.id.in_(part)).with_for_update(skip_locked=True)
        execute_dml(session, delete(Slot).where(Slot.id.in_(session.scalars(free).all())))


@in_index_order
def count_waiting(session: Session, owner: str | None = None) -> int:
    """Return the number of waiting runs of an owner or a group, at most MAX_COUNTED.

    None counts the runs of all owners.
    """
    waiting = select(SLOTS.c.id).where(_WAITS)
    if owner is not None:
        waiting = waiting.where(is_of(SLOTS.c.owner, owner))
    counted = select(func.count()).select_from(waiting.limit(MAX_COUNTED).subquery())
    return session.scalar(counted) or 0


def is_waiting(session: Session, *, run_id: str) -> bool:
    """Return whether the run waits for a slot."""
    waiting = select(SLOTS.c.id).where(SLOTS.c.run_id == bindparam("run_id"), _WAITS)
    return session.scalar(waiting, {"run_id": run_id}) is not None
