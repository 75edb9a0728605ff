"""Queries on schedules: write, lock, pause, rename and delete them."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    Select,
    delete,
    func,
    insert,
    select,
    tuple_,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from celery_dynbeat.common.errors import NotFoundError, ScheduleExistsError
from celery_dynbeat.db import statements
from celery_dynbeat.db.engine import savepoint
from celery_dynbeat.db.models import SCHEDULES, Alert, Run, Schedule
from celery_dynbeat.db.statements import RowLockedError, capabilities_in
from celery_dynbeat.planning import NO_CALENDARS, Calendars, TriggerColumns, calendar_names
from celery_dynbeat.store import calendars
from celery_dynbeat.store.runs import (
    detach_from_schedule,
    execute_dml,
    revoke_unstarted,
    unfinished,
)
from celery_dynbeat.telemetry import emit_on_commit, events, has_listeners

#: Ids in one statement.
_IDS = 1_000
#: ``managed_by`` of a row that follows an entry of Celery's ``beat_schedule``.
MANAGED_BY_CONFIG = "config"
#: The beginning of a row's ``paused_reason`` while its entry is refused.
REFUSED_PREFIX = "the beat_schedule entry is refused: "

#: Columns that an INSERT without them sets to NULL.
_NULL_BY_DEFAULT = frozenset(
    column.name
    for column in SCHEDULES.c
    if column.nullable and column.default is None and column.server_default is None
)
#: A constant: building it with its values takes longer than executing it.
_INSERT = insert(SCHEDULES)


def add(session: Session, values: Mapping[str, Any]) -> int:
    """Insert one schedule and return its id. Raises ScheduleExistsError if the name exists."""
    try:
        with savepoint(session):
            result = session.execute(_INSERT, values, bind_arguments=statements.BIND)
    except IntegrityError as error:
        owner, name = values["owner"], values["name"]
        # The read locks the row, because the caller's snapshot may be older than the existing row.
        if lock(session, owner=owner, name=name) is None:
            raise
        raise ScheduleExistsError(owner=owner, name=name) from error
    key = result.inserted_primary_key  # type: ignore[attr-defined]
    return int(key[0])


def add_many(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert schedules that all have the same columns.

    Raises ScheduleExistsError for the first name that exists. In this case, the caller must roll
    back the transaction, because some rows may have been inserted.
    """
    try:
        with savepoint(session):
            statements.insert(session, SCHEDULES, _without_nulls(rows))
    except IntegrityError as error:
        taken = existing_keys(session, ((row["owner"], row["name"]) for row in rows))
        if not taken:
            raise
        owner, name = min(taken)
        raise ScheduleExistsError(owner=owner, name=name) from error


def _without_nulls(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the rows without the columns that are NULL in each of them.

    SQLAlchemy and a driver encode each value, also None. Half of the columns of most batches are
    NULL, which took a quarter of the time of the INSERT.
    """
    nulls = {name for name in _NULL_BY_DEFAULT if all(row.get(name) is None for row in rows)}
    return [{name: row[name] for name in row if name not in nulls} for row in rows]


def calendars_of(session: Session, rows: Iterable[TriggerColumns]) -> Calendars:
    """Return the calendars that the triggers of the rows use, by name.

    If there are none, no query is made. A calendar that does not exist is left out.
    """
    names = calendar_names(rows)
    return calendars.read(session, names) if names else NO_CALENDARS


def newest_id(session: Session) -> int:
    """Return the largest id of a schedule, or 0 if there is no schedule."""
    return session.scalar(select(func.max(Schedule.id))) or 0


def ids_of(
    session: Session, keys: Collection[tuple[str, str]], *, after: int
) -> Mapping[tuple[str, str], int]:
    """Return the ids of new schedules by owner and name; ``after`` was the newest id before them.

    A query by these keys takes ten times as long. That query is necessary only if manual SQL
    inserted a row with a large id without advancing the sequence.
    """
    newer = select(Schedule.owner, Schedule.name, Schedule.id).where(Schedule.id > after)
    wanted = set(keys)
    ids = {(owner, name): row_id for owner, name, row_id in session.execute(newer)}
    missing = sorted(wanted - ids.keys())
    for start in range(0, len(missing), 500):
        statement = select(Schedule.owner, Schedule.name, Schedule.id).where(
            tuple_(Schedule.owner, Schedule.name).in_(missing[start : start + 500]),
        )
        ids.update(((owner, name), row_id) for owner, name, row_id in session.execute(statement))
    return ids


def existing_keys(session: Session, keys: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the (owner, name) ``keys`` that exist in the table."""
    existing: set[tuple[str, str]] = set()
    latest = capabilities_in(session).reading_latest
    for part in statements.in_parts(list(keys), 500):
        statement = select(Schedule.owner, Schedule.name).where(
            tuple_(Schedule.owner, Schedule.name).in_(part),
        )
        # The caller's snapshot may be older than the existing row.
        existing.update((owner, name) for owner, name in session.execute(latest(statement)))
    return existing


def get(session: Session, *, owner: str, name: str) -> Schedule:
    """Return the schedule. Raises NotFoundError."""
    row = session.scalars(_named(owner, name)).one_or_none()
    if row is None:
        raise NotFoundError("schedule", name, owner=owner)
    return row


def get_id(session: Session, *, owner: str, schedule_id: int) -> Schedule | None:
    """Return the owner's schedule with this id, or None."""
    by_id = select(Schedule).where(Schedule.id == schedule_id, Schedule.owner == owner)
    return session.scalars(by_id).one_or_none()


def find_id(session: Session, *, owner: str | None, name: str | None) -> int | None:
    """Return the id of a schedule, or None if it does not exist, or no owner or name is given."""
    if owner is None or name is None:
        return None
    named = select(Schedule.id).where(Schedule.owner == owner, Schedule.name == name)
    return session.scalar(named)


def lock(session: Session, *, owner: str, name: str, waits: bool = True) -> Schedule | None:
    """Return the schedule locked for this transaction, or None.

    Waits for a beat that has locked it. If another transaction has locked the row and ``waits`` is
    false, raise RowLockedError.
    """
    statement = _named(owner, name).with_for_update(skip_locked=not waits)
    row = session.scalars(statement.execution_options(populate_existing=True)).one_or_none()
    if row is None and not waits and find_id(session, owner=owner, name=name) is not None:
        raise RowLockedError
    return row


def lock_id(session: Session, *, schedule_id: int, waits: bool = True) -> Schedule | None:
    """Return the schedule with this id like ``lock``.

    Unless it ``waits``, raise RowLockedError for a schedule that another transaction has locked.
    """
    by_id = select(Schedule).where(Schedule.id == schedule_id)
    statement = by_id.with_for_update(skip_locked=not waits)
    row = session.scalars(statement.execution_options(populate_existing=True)).one_or_none()
    if row is None and not waits:
        check_deleted(session, schedule_id=schedule_id)
    return row


def lock_ids(session: Session, ids: Sequence[int]) -> Mapping[int, Schedule]:
    """Return the schedules with these ids, locked for this transaction, by id. Waits for beats."""
    rows: dict[int, Schedule] = {}
    for part in statements.in_parts(sorted(ids), _IDS):
        locked = select(Schedule).where(Schedule.id.in_(part)).order_by(Schedule.id)
        locked = locked.with_for_update().execution_options(populate_existing=True)
        rows |= {row.id: row for row in session.scalars(locked)}
    return rows


def locked_names(session: Session, *, owner: str, names: Iterable[str]) -> set[str]:
    """Return the names of schedules that another transaction has locked, or that have a locked run.

    The other schedules in ``names`` are locked for this transaction.
    """
    named = select(Schedule.id, Schedule.name).where(
        Schedule.owner == owner, Schedule.name.in_(sorted(names))
    )
    free = {row.id for row in session.execute(named.with_for_update(skip_locked=True))}
    free -= unfinished.with_locked_runs(session, sorted(free))
    return {row.name for row in session.execute(named) if row.id not in free}


def touch(session: Session, ids: Sequence[int]) -> None:
    """Write locked schedules without a change.

    For PostgreSQL this is a change. A transaction with an older snapshot cannot see the rows that
    this one adds for the schedules; because of the change it cannot lock them to add such rows.
    """
    for at in range(0, len(ids), _IDS):
        part = Schedule.id.in_(ids[at : at + _IDS])
        execute_dml(session, update(Schedule).where(part).values(version=Schedule.version))


def check_deleted(session: Session, *, schedule_id: int) -> None:
    """Raise RowLockedError if a schedule that a lock has skipped exists."""
    if session.scalar(select(Schedule.id).where(Schedule.id == schedule_id)) is not None:
        raise RowLockedError


def _named(owner: str, name: str) -> Select[Schedule]:
    return select(Schedule).where(Schedule.owner == owner, Schedule.name == name)


def rename(session: Session, row: Schedule, *, name: str) -> None:
    """Give a locked row another name. Raises ScheduleExistsError if the owner has that name.

    Its backfills and alerts also get the name. Its runs keep the name under which they ran.
    """
    owner, schedule_id = row.owner, row.id
    try:
        with savepoint(session):
            row.name = name
            session.flush()
    except IntegrityError as error:
        # The read locks the row, as in ``add``.
        if lock(session, owner=owner, name=name) is None:
            raise
        raise ScheduleExistsError(owner=owner, name=name) from error
    alerts = update(Alert).where(Alert.schedule_id == schedule_id).values(name=name)
    execute_dml(session, alerts)


def delete_one(session: Session, *, schedule_id: int) -> None:
    """Delete one schedule. Its history stays, with ``schedule_id`` NULL."""
    # The foreign keys do the same, except on SQLite with an application's engine that leaves them
    # off. SQLite reuses the id for the next schedule, which must not get this history.
    detach_from_schedule(session, Run.schedule_id == schedule_id)
    _delete_alerts(session, [schedule_id])
    session.execute(delete(Schedule).where(Schedule.id == schedule_id))


def delete_of_owner(session: Session, *, owner: str) -> int:
    """Delete all schedules of ``owner`` and return their number."""
    schedule_ids = select(Schedule.id).where(Schedule.owner == owner)
    # By the owner, which has an index: with a subquery MariaDB reads the whole history.
    detach_from_schedule(session, Run.owner == owner)
    _delete_alerts(session, schedule_ids)
    result = session.execute(delete(Schedule).where(Schedule.owner == owner))
    return int(result.rowcount)  # type: ignore[attr-defined]


def _delete_alerts(session: Session, schedule_ids: Any) -> None:
    """Delete the alerts of schedules, which have no foreign key (``store.alerts``)."""
    execute_dml(session, delete(Alert).where(Alert.schedule_id.in_(schedule_ids)))


def pause(
    session: Session,
    row: Schedule,
    *,
    reason: str,
    now: datetime,
    until: datetime | None = None,
) -> None:
    """Pause a locked schedule and revoke its runs that have not started, except requested ones.

    ``next_fire_at`` stays unchanged, so that a resume records the fire times missed since then.
    Beat resumes the schedule at ``until``. None means that only a call resumes it.
    """
    row.enabled, row.paused_reason, row.paused_until = False, reason, until
    row.next_run_at = row.held_at = None
    row.version += 1
    row.updated_at = now
    session.flush()
    revoke_unstarted(
        session,
        schedule_ids=[row.id],
        now=now,
        reason="the schedule was paused",
        keep_requested=True,
    )


def emit_paused(
    session: Session,
    row: Schedule,
    *,
    actor: str,
    reason: str,
    now: datetime,
    failures: int | None = None,
) -> None:
    """Report a pause with the commit. ``failures`` is the number of failures that caused it."""
    if has_listeners(events.SchedulePaused):
        event = events.SchedulePaused(
            schedule_id=row.id,
            owner=row.owner,
            schedule=row.name,
            task=row.task,
            actor=actor,
            reason=reason,
            automatic=failures is not None,
            failures=failures,
            at=now,
        )
        emit_on_commit(session, event)


def pause_all(session: Session, *, owner: str, reason: str, now: datetime) -> None:
    """Pause the locked schedules of ``owner``."""
    values: dict[Any, Any] = {
        Schedule.enabled: False,
        Schedule.paused_reason: reason,
        Schedule.paused_until: None,
        Schedule.next_run_at: None,
        Schedule.held_at: None,
        Schedule.version: Schedule.version + 1,
        Schedule.updated_at: now,
    }
    execute_dml(session, update(Schedule).where(Schedule.owner == owner).values(values))


def lock_ids_of_owner(session: Session, *, owner: str) -> Sequence[int]:
    """Return the ids of the owner's schedules, locked for this transaction."""
    statement = select(Schedule.id).where(Schedule.owner == owner).with_for_update()
    return session.scalars(statement).all()


def batches_of_owner(session: Session, *, owner: str, limit: int) -> Iterator[Sequence[Schedule]]:
    """Yield the owner's schedules by name, as the database has them now, ``limit`` at a time."""
    statement = select(Schedule).where(Schedule.owner == owner).order_by(Schedule.name).limit(limit)
    statement = statement.execution_options(populate_existing=True)
    rows = _load(session, statement)
    while rows:
        yield rows
        rows = _load(session, statement.where(Schedule.name > rows[-1].name))


def _load(session: Session, statement: Select[Schedule]) -> Sequence[Schedule]:
    return session.scalars(statement).all()


def managed_names(session: Session, *, managed_by: str) -> Sequence[str]:
    """Return the names of the application's schedules with this ``managed_by``."""
    statement = select(Schedule.name).where(
        Schedule.owner == "",
        Schedule.managed_by == managed_by,
    )
    return session.scalars(statement).all()


class ManagedRow(NamedTuple):
    """The state of a row that follows an entry of Celery's ``beat_schedule``."""

    name: str
    version: int
    is_quarantined: bool


def managed_rows(session: Session) -> Sequence[ManagedRow]:
    """Return the rows that follow entries of ``beat_schedule``."""
    columns = Schedule.name, Schedule.version, Schedule.error.is_not(None)
    statement = select(*columns).where(
        Schedule.owner == "", Schedule.managed_by == MANAGED_BY_CONFIG
    )
    return [ManagedRow(*row) for row in session.execute(statement)]


def tags_of(session: Session, ids: Iterable[int]) -> Mapping[int, Sequence[str]]:
    """Return the tags of up to a thousand schedules by id."""
    rows = session.execute(select(Schedule.id, Schedule.tags).where(Schedule.id.in_(list(ids))))
    return {row.id: row.tags for row in rows}
