"""Questions to the table of schedules, one function each."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    bindparam,
    delete,
    func,
    insert,
    not_,
    select,
    tuple_,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import Backfill, Run, Schedule
from celery_dynbeat.errors import ScheduleExistsError
from celery_dynbeat.store.rows import Damage, Found, read, whole
from celery_dynbeat.store.runs import unlink
from celery_dynbeat.triggers import KINDS

#: What beat needs of a schedule in order to plan and publish its runs; nothing else is read.
_DUE_COLUMNS = (
    Schedule.id,
    Schedule.owner,
    Schedule.name,
    Schedule.task,
    Schedule.args,
    Schedule.kwargs,
    Schedule.options,
    Schedule.trigger_kind,
    Schedule.trigger_spec,
    Schedule.timezone,
    Schedule.anchor_at,
    Schedule.start_at,
    Schedule.end_at,
    Schedule.max_runs,
    Schedule.run_count,
    Schedule.catch_up,
    Schedule.catch_up_window,
    Schedule.expires_after,
    Schedule.jitter,
    Schedule.overlap,
    Schedule.max_run_time,
    Schedule.next_fire_at,
    Schedule.last_run_at,
    Schedule.created_at,
    Schedule.version,
)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which schedules a list shows; None means any."""

    owner: str | None = None
    task: str | None = None
    enabled: bool | None = None
    tag: str | None = None


def _readable() -> ColumnElement[bool]:
    """Return the condition that this version knows the row's kind of trigger.

    During a rolling upgrade a row may be of a kind that only the newer beats know. It stays in the
    index, untouched, for one of them.
    """
    return Schedule.trigger_kind.in_(KINDS)


def lock_due(
    session: Session,
    *,
    now: datetime,
    limit: int,
    only: Collection[str] = (),
    without: Collection[str] = (),
) -> Found:
    """Return up to ``limit`` schedules due at ``now``, oldest first, locked for this transaction.

    Rows that another beat has locked are skipped, and those of a kind that only a newer version
    knows. SQLite has no row locks and ignores the clause; there the write lock of the transaction
    keeps two beats apart. ``only`` and ``without`` name owners whose schedules alone are wanted, or
    are not. What is due and cannot be read is locked too.
    """
    statement = due_statement(now=now, limit=limit)
    if only:
        statement = statement.where(Schedule.owner.in_(only))
    if without:
        statement = statement.where(Schedule.owner.not_in(without))
    return read(session, statement, key=Schedule.id)


def due_statement(*, now: datetime, limit: int) -> Select[Any]:
    """Return the statement of ``lock_due``, for those who want to see its plan."""
    return (
        select(*_DUE_COLUMNS)
        .where(Schedule.next_run_at.is_not(None), Schedule.next_run_at <= now, _readable())
        .order_by(Schedule.next_run_at, Schedule.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )


def lock_unplanned(session: Session, *, limit: int) -> Found:
    """Return up to ``limit`` enabled schedules without a next run, locked like the due ones."""
    return read(session, unplanned_statement(limit=limit), key=Schedule.id)


def unplanned_statement(*, limit: int) -> Select[Any]:
    """Return the statement of ``lock_unplanned``."""
    unplanned = select(*_DUE_COLUMNS).where(*_unplanned()).limit(limit)
    return unplanned.with_for_update(skip_locked=True)


def lock_damaged(session: Session, *, schedule_ids: Collection[int]) -> Sequence[Damage]:
    """Return what is wrong with those of the schedules that cannot be read; all are locked.

    Those that another transaction has locked are passed over.
    """
    statement = select(*_DUE_COLUMNS).where(Schedule.id.in_(schedule_ids), Schedule.error.is_(None))
    return read(session, statement.with_for_update(skip_locked=True), key=Schedule.id).damaged


def is_due(*, now: datetime) -> Any:
    """Return the condition that a schedule is due, as the database itself compares instants."""
    due = select(Schedule.id).where(Schedule.next_run_at.is_not(None), Schedule.next_run_at <= now)
    return due.where(_readable()).limit(1).scalar_subquery()


def has_unplanned() -> Any:
    """Return the condition that an unplanned schedule exists."""
    return select(Schedule.id).where(*_unplanned()).limit(1).scalar_subquery()


def earliest_due() -> Any:
    """Return the subquery for the earliest ``next_run_at`` of all."""
    # Not min(): beside another condition MariaDB reads the whole index for it.
    earliest = select(Schedule.next_run_at).where(Schedule.next_run_at.is_not(None), _readable())
    return earliest.order_by(Schedule.next_run_at, Schedule.id).limit(1).scalar_subquery()


def unreadable(session: Session, *, now: datetime, limit: int) -> Sequence[Row[Any]]:
    """Return id, owner, name and kind of up to ``limit`` schedules that this version passes over.

    Only of those whose turn it is: that are due, or that nobody has planned yet.
    """
    columns = (Schedule.id, Schedule.owner, Schedule.name, Schedule.trigger_kind)
    due = (Schedule.next_run_at.is_not(None), Schedule.next_run_at <= now)
    found: list[Any] = []
    for their_turn in (due, _unplanned_at_all()):
        statement = select(*columns).where(*their_turn, not_(_readable())).limit(limit)
        found += session.execute(statement).all()
    return found[:limit]


def _unplanned() -> tuple[Any, ...]:
    # As it was typed; beat writes what it understood. An index would not serve it for what is due.
    typed = func.lower(func.trim(Schedule.trigger_kind))
    return (*_unplanned_at_all(), typed.in_(KINDS))


def _unplanned_at_all() -> tuple[Any, ...]:
    return (
        Schedule.enabled,
        Schedule.next_run_at.is_(None),
        Schedule.finished_at.is_(None),
        Schedule.error.is_(None),
    )


def advance(session: Session, changes: Sequence[Mapping[str, Any]]) -> None:
    """Write what beat decided; each change holds ``id`` and the same columns as the others."""
    if not changes:
        return
    columns = [column for column in changes[0] if column != "id"]
    statement = (
        update(Schedule)
        .where(Schedule.id == bindparam("row_id"))
        .values({column: bindparam(f"new_{column}") for column in columns})
        .execution_options(synchronize_session=None)
    )
    parameters = [
        {"row_id": change["id"], **{f"new_{column}": change[column] for column in columns}}
        for change in changes
    ]
    session.connection().execute(statement, parameters)


def set_aside(session: Session, *, schedule_id: int, version: int, error: str) -> bool:
    """Take a schedule out of the index with ``error``, unless somebody has edited it since."""
    statement = (
        update(Schedule)
        .where(Schedule.id == schedule_id, Schedule.version == version, Schedule.enabled)
        .values(next_run_at=None, error=error)
    )
    result = session.execute(statement, execution_options={"synchronize_session": False})
    return bool(result.rowcount == 1)  # type: ignore[attr-defined]


def set_damaged_aside(session: Session, damaged: Iterable[Damage]) -> None:
    """Take schedules that are locked and cannot be read out of the index."""
    advance(session, [{"id": each.id, "next_run_at": None, "error": str(each)} for each in damaged])


def add(session: Session, values: Mapping[str, Any]) -> int:
    """Insert one schedule and return its id. Raises ScheduleExistsError when the name is taken."""
    try:
        with session.begin_nested():
            result = session.execute(insert(Schedule).values(**values))
    except IntegrityError as error:
        owner, name = values["owner"], values["name"]
        # A locking read: the caller's snapshot may be older than the row that stands in the way.
        if lock(session, owner=owner, name=name) is None:
            raise
        raise ScheduleExistsError(owner=owner, name=name) from error
    key = result.inserted_primary_key  # type: ignore[attr-defined]
    return int(key[0])


def add_many(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert schedules that all hold the same columns.

    Raises ScheduleExistsError naming the first that exists; the caller's transaction must then be
    rolled back, nothing of it may stay.
    """
    if not rows:
        return
    taken = existing(session, ((row["owner"], row["name"]) for row in rows))
    if taken:
        owner, name = min(taken)
        raise ScheduleExistsError(owner=owner, name=name)
    session.connection().execute(insert(Schedule), list(rows))


def existing(session: Session, keys: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return those of the (owner, name) ``keys`` that are in the table."""
    wanted = list(keys)
    found: set[tuple[str, str]] = set()
    for start in range(0, len(wanted), 500):
        statement = select(Schedule.owner, Schedule.name).where(
            tuple_(Schedule.owner, Schedule.name).in_(wanted[start : start + 500]),
        )
        found.update((owner, name) for owner, name in session.execute(statement))
    return found


def find(session: Session, *, owner: str, name: str) -> Schedule | None:
    """Return the schedule, or None."""
    return _only(session, _named(owner, name))


def lock(session: Session, *, owner: str, name: str) -> Schedule | None:
    """Return the schedule locked for this transaction, or None; waits for a beat that has it."""
    statement = _named(owner, name).with_for_update().execution_options(populate_existing=True)
    return _only(session, statement, edited=True)


def lock_id(session: Session, *, schedule_id: int) -> Schedule | None:
    """Do the same by the schedule's id."""
    statement = select(Schedule).where(Schedule.id == schedule_id).with_for_update()
    return _only(session, statement.execution_options(populate_existing=True), edited=True)


def _only(
    session: Session, statement: Select[Schedule], *, edited: bool = False
) -> Schedule | None:
    return next(iter(whole(session, statement, edited=edited)), None)


def _named(owner: str, name: str) -> Select[Schedule]:
    return select(Schedule).where(Schedule.owner == owner, Schedule.name == name)


def page(
    session: Session,
    *,
    matching: Filter,
    after: tuple[str, str] | None,
    limit: int,
) -> Sequence[Schedule]:
    """Return up to ``limit`` schedules by (owner, name), beginning behind the key ``after``."""
    statement = select(Schedule).order_by(Schedule.owner, Schedule.name).limit(limit)
    for condition in _conditions(session, matching):
        statement = statement.where(condition)
    if after is not None:
        statement = statement.where(tuple_(Schedule.owner, Schedule.name) > tuple_(*after))
    return whole(session, statement)


def _conditions(session: Session, matching: Filter) -> Iterable[Any]:
    if matching.owner is not None:
        yield Schedule.owner == matching.owner
    if matching.task is not None:
        yield Schedule.task == matching.task
    if matching.enabled is not None:
        yield Schedule.enabled == matching.enabled
    if matching.tag is not None:
        dialect = session.get_bind().dialect
        yield capabilities_of(dialect).has_tag(Schedule.tags, matching.tag)


def remove(session: Session, *, schedule_id: int) -> None:
    """Delete one schedule; its history stays, without it."""
    # The foreign keys do it too, save on SQLite where an application's own engine leaves them off;
    # and SQLite gives the id to the next schedule, whose history this must not become.
    unlink(session, Run.schedule_id == schedule_id)
    session.execute(delete(Backfill).where(Backfill.schedule_id == schedule_id))
    session.execute(delete(Schedule).where(Schedule.id == schedule_id))


def remove_owner(session: Session, *, owner: str) -> int:
    """Delete all schedules of ``owner`` and return how many there were."""
    theirs = select(Schedule.id).where(Schedule.owner == owner)
    # By the owner, which has an index: MariaDB walks the whole history for a subquery.
    unlink(session, Run.owner == owner)
    session.execute(
        delete(Backfill).where(Backfill.schedule_id.in_(theirs)),
        execution_options={"synchronize_session": False},
    )
    result = session.execute(delete(Schedule).where(Schedule.owner == owner))
    return int(result.rowcount)  # type: ignore[attr-defined]


def lock_owner(session: Session, *, owner: str) -> Sequence[int]:
    """Return the ids of the owner's schedules, locked for this transaction."""
    statement = select(Schedule.id).where(Schedule.owner == owner).with_for_update()
    return session.scalars(statement).all()


def managed(session: Session, *, managed_by: str) -> Sequence[str]:
    """Return the names of the application's own schedules that ``managed_by`` keeps."""
    statement = select(Schedule.name).where(
        Schedule.owner == "",
        Schedule.managed_by == managed_by,
    )
    return session.scalars(statement).all()
