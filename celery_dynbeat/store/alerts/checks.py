"""Queries for what no event reports: schedules to check, overdue schedules, unfinished runs.

A row of ``dynbeat_alert_check`` says when beat checks a schedule that may be silent or too
frequent. Overdue schedules and unfinished runs are read in windows: up to a limit of rows in the
order of an index, after a key, without locks.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import bindparam, literal, select, tuple_
from sqlalchemy.orm import Session

from celery_dynbeat.db import statements
from celery_dynbeat.db.alert_models import ALERT_CHECKS
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import RUNS, SCHEDULES, Schedule
from celery_dynbeat.db.statements import Row, force_index, in_index_order, read
from celery_dynbeat.db.types import UtcDateTime
from celery_dynbeat.store import holds
from celery_dynbeat.store.runs import UNFINISHED_INDEX, execute_dml
from celery_dynbeat.store.schedules.due import DUE_INDEX

#: Keys in one SELECT.
_MAX_KEYS = 500
_DUE_INDEX = "ix_dynbeat_alert_check_due_at"
_CHECK, _SCHEDULE, _RUN = ALERT_CHECKS.c, SCHEDULES.c, RUNS.c


@in_index_order
def add(session: Session, keys: Sequence[tuple[str, str]], *, due_at: datetime) -> None:
    """Insert a row for each of the schedules with these owners and names."""
    for part in statements.in_parts(keys, _MAX_KEYS):
        ids = select(Schedule.id).where(tuple_(Schedule.owner, Schedule.name).in_(part))
        _insert(session, session.scalars(ids).all(), due_at)


@in_index_order
def add_missing(session: Session, *, after: int, limit: int, due_at: datetime) -> int | None:
    """Insert the missing rows of the next ``limit`` schedules whose ids are above ``after``.

    Return the last of these ids, or None if there are no more.
    """
    following = select(Schedule.id).where(Schedule.id > after).order_by(Schedule.id).limit(limit)
    ids = session.scalars(following).all()
    if not ids:
        return None
    present = select(_CHECK.schedule_id).where(_CHECK.schedule_id.between(ids[0], ids[-1]))
    _insert(session, sorted(set(ids).difference(session.scalars(present))), due_at)
    return ids[-1]


def put(session: Session, *, schedule_id: int, due_at: datetime) -> None:
    """Insert the row of a locked schedule, or set when it is due."""
    _insert(session, [schedule_id], due_at)
    set_due(session, {schedule_id: due_at})


def _insert(session: Session, ids: Sequence[int], due_at: datetime) -> None:
    # The caller's session may choose its database by the mapped class.
    connection = session.connection(bind_arguments={"mapper": Schedule})
    rows = [{"schedule_id": schedule_id, "due_at": due_at} for schedule_id in ids]
    statements.insert_new(connection, ALERT_CHECKS, rows)


@in_index_order
def next_due(session: Session) -> datetime | None:
    """Return when the next check is due, or None if there is no check. Reads one row."""
    earliest = force_index(select(_CHECK.due_at), ALERT_CHECKS, _DUE_INDEX)
    found: datetime | None = session.scalar(earliest.order_by(_CHECK.due_at).limit(1))
    return found


@in_index_order
def lock_due(session: Session, *, now: datetime, limit: int) -> Sequence[Row]:
    """Return schedule_id and due_at of checks due at ``now``, locked for this transaction."""
    statement = force_index(select(ALERT_CHECKS), ALERT_CHECKS, _DUE_INDEX)
    statement = statement.where(_CHECK.due_at <= now).order_by(_CHECK.due_at).limit(limit)
    return read(session, statement.with_for_update(skip_locked=True))


def set_due(session: Session, due_at: Mapping[int, datetime]) -> None:
    """Set when locked checks are due next, by the id of their schedule."""
    if due_at:
        values = [{"checked": key, "due": instant} for key, instant in due_at.items()]
        session.connection(bind_arguments={"mapper": Schedule}).execute(_SET_DUE, values)


_SET_DUE = (
    ALERT_CHECKS.update()
    .where(_CHECK.schedule_id == bindparam("checked"))
    .values(due_at=bindparam("due", type_=UtcDateTime))
)


def delete(session: Session, ids: Sequence[int]) -> None:
    """Delete the checks of schedules."""
    if ids:
        execute_dml(session, ALERT_CHECKS.delete().where(_CHECK.schedule_id.in_(ids)))


#: The next_run_at and the id of a schedule; the schedule id and the id of a run.
OverdueKey = tuple[datetime, int]
RunKey = tuple[int, str]


class Window(NamedTuple):
    """The rows of a window, and whether there may be more after it."""

    rows: Sequence[Row]
    is_full: bool


@in_index_order
def overdue_schedules(
    session: Session, *, before: datetime, after: OverdueKey | None, limit: int
) -> Window:
    """Return id, owner and next_run_at of schedules that were due before an instant."""
    columns = (_SCHEDULE.next_run_at, _SCHEDULE.id)
    statement = force_index(select(*columns, _SCHEDULE.owner), SCHEDULES, DUE_INDEX)
    statement = statement.where(columns[0].is_not(None), columns[0] < before)
    if after is not None:
        row_after = capabilities_of(session.get_bind().dialect).row_after
        statement = statement.where(row_after(columns, after))
    found = read(session, statement.order_by(*columns).limit(limit))
    return Window(found, len(found) >= limit)


@in_index_order
def unfinished_runs(session: Session, *, after: RunKey | None, limit: int) -> Window:
    """Return unfinished runs in the order of their schedules: status, retries and instants."""
    capabilities = capabilities_of(session.get_bind().dialect)
    columns = (_RUN.schedule_id, _RUN.id)
    instants = (_RUN.created_at, _RUN.sent_at, _RUN.started_at)
    found = (*columns, _RUN.status, _RUN.retries, *instants)
    statement = force_index(select(*found), RUNS, UNFINISHED_INDEX)
    statement = statement.where(_RUN.finished_at.is_(None), _RUN.schedule_id.is_not(None))
    if after is not None:
        schedule_id, run_id = after
        # PostgreSQL compares no uuid with text.
        key = (schedule_id, literal(run_id, _RUN.id.type))
        statement = statement.where(capabilities.row_after(columns, key))
    fixed = (_RUN.finished_at,) if capabilities.orders_by_fixed_columns else ()
    rows = read(session, statement.order_by(*fixed, *columns).limit(limit))
    return Window(rows, len(rows) >= limit)


def is_everything_held(session: Session, *, now: datetime) -> bool:
    """Return whether a hold of everything is in force."""
    return bool(session.scalar(select(holds.everything_is_held(now))))


def held_owners(session: Session, owners: Sequence[str], *, now: datetime) -> Any:
    """Return which of the owners have a hold in force."""
    return holds.ends_of(session, owners, now=now).keys() if owners else ()
