"""The queries of a rerun on the history.

The search reads the history in the order of an index:

    one schedule   (schedule_id, scheduled_for)
    one owner      (owner, scheduled_for, id)
    all owners     (id): ids are ordered by time

Most runs do not match, so each query also has a last position, which bounds the number of rows that
it reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, and_, exists, func, or_, select
from sqlalchemy.orm import Session, aliased

from celery_dynbeat.common.run_ids import first_run_id
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from celery_dynbeat.db.statements import (
    Row,
    force_index,
    in_index_order,
    in_parts,
    read,
    reading_latest,
)
from celery_dynbeat.store.runs import FIRE_TIME_INDEX, MAX_IN_LIST

OWNER_INDEX = "ix_dynbeat_run_owner_scheduled_for"
#: A run is recorded at its fire time or later. Clocks may differ by as much.
CLOCK_MARGIN = timedelta(minutes=1)
#: The columns of a run that a rerun needs.
_CANDIDATE_COLUMNS: tuple[Any, ...] = (
    Run.id,
    Run.schedule_id,
    Run.status,
    Run.scheduled_for,
    Run.rerun_of,
    Run.nominal_at,
)


class Found(NamedTuple):
    """A run that matches, and its schedule."""

    position: "Position"
    schedule_id: int


class Position(NamedTuple):
    """A position of the search: the fire time and the id of a run."""

    at: datetime
    run_id: str


@dataclass(frozen=True, slots=True)
class RerunFilter:
    """The runs that a rerun of many names. ``owner``, ``name`` and ``task=None`` mean any.

    ``schedule_id`` is the id of the schedule of this owner and name. Runs that were recorded or
    ended at ``ended_before`` or later do not match.
    """

    owner: str | None
    name: str | None
    schedule_id: int | None
    task: str | None
    statuses: Sequence[str]
    since: datetime
    until: datetime
    ended_before: datetime

    def start(self) -> Position:
        """Return the position before the first run."""
        return Position(self.since, first_run_id(self.since - CLOCK_MARGIN))


@in_index_order
def last_position(
    session: Session, matching: RerunFilter, *, after: Position, limit: int
) -> Position | None:
    """Return the position of the ``limit``-th run after ``after``, matching or not.

    None if the rest of the search has fewer runs.
    """
    statement = _search((Run.scheduled_for, Run.id), matching, after).offset(limit - 1).limit(1)
    row = session.execute(statement).one_or_none()
    return None if row is None else Position(row[0], row[1])


@in_index_order
def find(
    session: Session,
    matching: RerunFilter,
    *,
    after: Position,
    last: Position | None,
    limit: int,
) -> Sequence[Found]:
    """Return up to ``limit`` matching runs after ``after`` up to ``last``."""
    columns = (Run.scheduled_for, Run.id, Run.schedule_id)
    statement = _matching(columns, matching, after, last).limit(limit)
    return [Found(Position(row[0], row[1]), row[2]) for row in session.execute(statement)]


def _matching(
    columns: Sequence[Any], matching: RerunFilter, after: Position, last: Position | None
) -> Select[Any]:
    statement = _search(columns, matching, after).where(
        Run.status.in_(matching.statuses),
        # The clocks of two workers differ, so a run may end before it was recorded.
        Run.created_at < matching.ended_before,
        Run.finished_at < matching.ended_before,
        # A run of a deleted schedule cannot run again, and many of them would hide the others.
        Run.schedule_id.is_not(None),
        Run.scheduled_for >= matching.since,
        Run.scheduled_for < matching.until,
        ~_has_newer(),
    )
    if matching.name is not None:
        statement = statement.where(Run.name == matching.name)
    if matching.task is not None:
        statement = statement.where(Run.task == matching.task)
    if matching.owner is not None:
        # The column alone is not enough, because PostgreSQL may then not read the index of the
        # search. SQLite gives the id of a deleted schedule to a new one, perhaps of another owner.
        statement = statement.where(func.coalesce(Run.owner, "") == matching.owner)
    return statement if last is None else statement.where(_until(matching, last))


def _search(columns: Sequence[Any], matching: RerunFilter, after: Position) -> Select[Any]:
    """Return the SELECT of all runs of the search, matching or not, in the order of an index."""
    statement = select(*columns)
    if matching.owner is None:
        end = first_run_id(matching.ended_before + CLOCK_MARGIN)
        statement = force_index(statement, Run, "PRIMARY")
        return statement.where(Run.id > after.run_id, Run.id < end).order_by(Run.id)
    at = Run.scheduled_for
    in_span = and_(at >= after.at, at < matching.until)
    statement = statement.where(in_span, or_(at > after.at, Run.id > after.run_id))
    if matching.schedule_id is not None:
        statement = statement.where(Run.schedule_id == matching.schedule_id).order_by(at)
        return force_index(statement, Run, FIRE_TIME_INDEX)
    statement = statement.where(Run.owner == matching.owner).order_by(at, Run.id)
    return force_index(statement, Run, OWNER_INDEX)


def _until(matching: RerunFilter, last: Position) -> ColumnElement[bool]:
    if matching.owner is None:
        return Run.id <= last.run_id
    at = Run.scheduled_for
    return and_(at <= last.at, or_(at < last.at, Run.id <= last.run_id))


def _has_newer() -> ColumnElement[bool]:
    """Return the condition that a run has a newer rerun."""
    newer = aliased(Run)
    return exists(
        select(newer.id).where(
            newer.rerun_of == func.coalesce(Run.rerun_of, Run.id),
            newer.scheduled_for > Run.scheduled_for,
        )
    )


@in_index_order
def newest_by_ids(
    session: Session, ids: Sequence[str], *, owner: str | None, statuses: Sequence[str]
) -> Sequence[Row]:
    """Return which of the runs have one of ``statuses`` and no newer rerun.

    They are without locks and in any order. ``ids`` have no limit. Runs that moved from ``owner``
    to another owner are left out; None means any owner.
    """
    parts = [ids[at : at + MAX_IN_LIST] for at in range(0, len(ids), MAX_IN_LIST)]
    found = select(*_CANDIDATE_COLUMNS).where(Run.status.in_(statuses), ~_has_newer())
    if owner is not None:
        found = found.where(Run.owner == owner)
    return [row for part in parts for row in read(session, found.where(Run.id.in_(part)))]


@in_index_order
def succeeded_again(session: Session, ids: Sequence[str]) -> set[str]:
    """Return which of the original runs have a rerun that succeeded. ``ids`` have no limit."""
    succeeded = select(Run.rerun_of).where(Run.status == Status.SUCCEEDED)
    return {
        run_id
        for part in in_parts(ids, MAX_IN_LIST)
        for run_id in session.scalars(succeeded.where(Run.rerun_of.in_(part)))
        if run_id is not None
    }


@in_index_order
def newest_of_family(session: Session, run: Run) -> Sequence[Run]:
    """Return the newest rerun of ``run``'s original, in a list; empty without a rerun."""
    statement = (
        select(Run)
        .where(Run.rerun_of == (run.rerun_of or run.id))
        .order_by(Run.scheduled_for.desc())
        .limit(1)
    )
    return session.scalars(statement.execution_options(populate_existing=True)).all()


@in_index_order
def rerun_of(session: Session, *, schedule_id: int, scheduled_for: datetime) -> str | None:
    """Return ``rerun_of`` of the run with this instant, even if it is newer than the snapshot."""
    run = select(Run.rerun_of).where(
        Run.schedule_id == schedule_id, Run.scheduled_for == scheduled_for
    )
    return session.scalar(reading_latest(session, run))
