"""Queries of a backfill on the history of one schedule."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, or_, select, update
from sqlalchemy.orm import Session

from celery_dynbeat.common.states import Status
from celery_dynbeat.db import statements
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import REQUESTED_ORIGINS, Run
from celery_dynbeat.db.statements import Row, force_index, in_index_order, in_parts, read
from celery_dynbeat.store.runs import FIRE_TIME_INDEX, MAX_IN_LIST, execute_dml


@in_index_order
def fire_times_with_run(
    session: Session, *, schedule_id: int, instants: Sequence[datetime]
) -> set[datetime]:
    """Return which of the fire times have a run. A skipped fire time has no run."""
    parts = in_parts(instants, MAX_IN_LIST)
    return {at for part in parts for at in _with_run(session, schedule_id, part)}


def _with_run(
    session: Session, schedule_id: int, instants: Sequence[datetime]
) -> Iterable[datetime]:
    is_run = or_(Run.status != Status.SKIPPED, Run.attempt > 0)
    sent = (Run.schedule_id == schedule_id, is_run)
    at = Run.scheduled_for
    if capabilities_of(session.get_bind(Run).dialect).has_lateral:
        # LIMIT makes it a separate query. Otherwise PostgreSQL merges it into one query of the
        # whole history.
        of_one = select(at).where(*sent).limit(1)
        statement = statements.lateral_for_each(at, instants, lambda each: of_one.where(at == each))
    else:
        statement = select(at).where(*sent, at.in_(instants))
    return session.scalars(statement)


def _is_by_call() -> ColumnElement[bool]:
    """Return the condition that the row is about a fire time that ``skip()`` took out."""
    is_unstarted = and_(Run.status == Status.SKIPPED, Run.attempt == 0)
    return and_(is_unstarted, Run.error.startswith("skipped by "))


#: The columns that say which fire times a row of history represents, of which trigger.
_COVERING: tuple[Any, ...] = (
    Run.id,
    Run.status,
    Run.attempt,
    Run.scheduled_for,
    Run.fire_count,
    Run.error,
    Run.created_at,
    _is_by_call().label("is_by_call"),
)


@in_index_order
def rows_covering(
    session: Session, *, schedule_id: int, first: datetime, last: datetime
) -> Sequence[Row]:
    """Return the rows of history that can cover the fire times in [first, last], oldest first.

    These are the rows in the span and the next one, with the rows of ``skip()`` before it, which
    cover no other fire time. Manual runs and reruns are left out, because their instants are not
    fire times.
    """
    rows = select(*_COVERING).where(
        Run.schedule_id == schedule_id, Run.origin.not_in(REQUESTED_ORIGINS)
    )
    rows = rows.order_by(Run.scheduled_for)
    at = Run.scheduled_for
    after = read(session, rows.where(at > last).limit(1))
    if after and after[0].is_by_call:
        after = read(session, rows.where(at > last).limit(MAX_IN_LIST))
    between = list(takewhile(lambda row: row.is_by_call, after))
    following = after[: len(between) + 1]
    return [*read(session, rows.where(at >= first, at <= last)), *following]


@in_index_order
def skipped_directly_before(
    session: Session, *, schedule_id: int, instant: datetime, limit: int
) -> Sequence[datetime]:
    """Return up to ``limit`` fire times before ``instant`` that ``skip()`` took out, newest first.

    No other row of history lies between them and ``instant``, except manual runs and reruns.
    """
    columns: Any = select(Run.id, Run.scheduled_for, Run.origin, _is_by_call().label("is_by_call"))
    found = force_index(columns, Run, FIRE_TIME_INDEX).where(
        Run.schedule_id == schedule_id, Run.scheduled_for < instant
    )
    rows = read(session, found.order_by(Run.scheduled_for.desc()).limit(limit))
    fire_times = (row for row in rows if row.origin not in REQUESTED_ORIGINS)
    return [row.scheduled_for for row in takewhile(lambda row: row.is_by_call, fire_times)]


def shrink_skipped(session: Session, counts: Mapping[str, int]) -> None:
    """Set ``fire_count`` of skipped rows, by id; delete the rows whose number is 0."""
    is_skipped = (Run.status == Status.SKIPPED, Run.attempt == 0)
    empty = [run_id for run_id, count in counts.items() if not count]
    for part in in_parts(empty, MAX_IN_LIST):
        execute_dml(session, delete(Run).where(Run.id.in_(part), *is_skipped))
    for run_id, count in counts.items():
        if count:
            changed = update(Run).where(Run.id == run_id, *is_skipped)
            execute_dml(session, changed.values(fire_count=count))
