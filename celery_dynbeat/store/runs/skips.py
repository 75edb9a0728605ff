"""Queries on the fire times that ``skip()`` removed. Each of them has a row of history."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

from sqlalchemy import ColumnElement, Select, and_, delete, func, select, union_all
from sqlalchemy.orm import Session

from celery_dynbeat.common.states import Origin, Status
from celery_dynbeat.db import statements
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import REQUESTED_ORIGINS, Run
from celery_dynbeat.db.statements import Row, force_index, in_index_order, read
from celery_dynbeat.store.runs import FIRE_TIME_INDEX, execute_dml

#: SELECTs in one UNION, where the database has no LATERAL. SQLite allows 500.
_MAX_UNION = 100


class SkipColumns(Protocol):
    """The columns of a schedule that say which skipped fire times its plan needs."""

    @property
    def id(self) -> int:
        """The id of the row."""

    @property
    def next_fire_at(self) -> datetime | None:
        """The next fire time."""

    @property
    def skipped_until(self) -> datetime | None:
        """The last skipped fire time."""


@in_index_order
def newest_decided(
    session: Session, schedule_ids: Collection[int], *, after: datetime, until: datetime
) -> Mapping[int, datetime]:
    """Return the newest fire time in the span that a claim has decided, by schedule id.

    A row of skipped fire times counts for all of them, with its newest one. The row of a call of
    ``skip()`` does not count.
    """
    newest = select(Run.schedule_id, func.max(Run.scheduled_for)).where(
        Run.schedule_id.in_(schedule_ids),
        Run.scheduled_for > after,
        Run.scheduled_for <= until,
        Run.origin == Origin.SCHEDULE,
        ~is_by_call(),
    )
    newest = force_index(newest, Run, FIRE_TIME_INDEX).group_by(Run.schedule_id)
    return {row[0]: row[1] for row in session.execute(newest) if row[0] is not None}


class _Span(NamedTuple):
    schedule_id: int
    first: datetime
    last: datetime


def is_by_call() -> ColumnElement[bool]:
    """Return the condition that ``skip()`` wrote the row.

    Its row ends at the fire time. A policy skips a fire time after it has passed, and its row ends
    when it is written. A run that its task skipped has had an attempt.
    """
    is_ahead = Run.created_at < Run.finished_at
    return and_(Run.status == Status.SKIPPED, Run.attempt == 0, is_ahead)


def of_rows(
    session: Session, rows: Iterable[SkipColumns], *, now: datetime
) -> Mapping[int, Sequence[datetime]]:
    """Return the skipped fire times that the plans of the schedules need, by schedule id.

    A plan needs the skipped fire times from ``next_fire_at`` or from ``now``, whichever is earlier.
    A schedule without such fire times has no entry. If no schedule has any, no query is made.
    """
    spans = [span for row in rows if (span := _span(row, now)) is not None]
    found: defaultdict[int, list[datetime]] = defaultdict(list)
    if spans:
        for skipped in _in_spans(session, spans):
            found[skipped.schedule_id].append(skipped.scheduled_for)
    return found


def in_span(
    session: Session, *, schedule_id: int, first: datetime, last: datetime
) -> Sequence[datetime]:
    """Return the skipped fire times of the schedule in [first, last]."""
    found = _in_spans(session, [_Span(schedule_id, first, last)])
    return [skipped.scheduled_for for skipped in found]


@in_index_order
def directly_before(
    session: Session, *, schedule_id: int, instant: datetime, limit: int
) -> Sequence[datetime]:
    """Return up to ``limit`` skipped fire times of the schedule before ``instant``, newest first.

    No other row of history lies between them and ``instant``, except manual runs and reruns, whose
    instants are not fire times. At most ``limit`` rows are read.
    """
    columns: Any = select(Run.id, Run.scheduled_for, Run.origin, is_by_call().label("is_by_call"))
    of_schedule = (Run.schedule_id == schedule_id, Run.scheduled_for < instant)
    newest = force_index(columns, Run, FIRE_TIME_INDEX).where(*of_schedule)
    newest = newest.order_by(Run.scheduled_for.desc()).limit(limit)
    rows = read(session, newest)
    fire_times = (row for row in rows if row.origin not in REQUESTED_ORIGINS)
    return [row.scheduled_for for row in takewhile(lambda row: row.is_by_call, fire_times)]


def _span(row: SkipColumns, now: datetime) -> _Span | None:
    if row.skipped_until is None:
        return None
    first = now if row.next_fire_at is None else min(row.next_fire_at, now)
    return _Span(row.id, first, row.skipped_until) if first <= row.skipped_until else None


@in_index_order
def _in_spans(session: Session, spans: Sequence[_Span]) -> Sequence[Row]:
    if capabilities_of(session.get_bind(Run).dialect).has_lateral:
        keys = (Run.schedule_id, Run.scheduled_for, Run.scheduled_for)
        return read(session, statements.lateral_for_rows(keys, spans, _skipped))
    found: list[Row] = []
    for part in statements.in_parts(spans, _MAX_UNION):
        each = [_skipped(*span) for span in part]
        found += read(session, select(union_all(*each).subquery()) if each[1:] else each[0])
    return found


def _skipped(schedule_id: Any, first: Any, last: Any) -> Select[Any]:
    columns: Any = select(Run.id, Run.schedule_id, Run.scheduled_for)
    in_span = (Run.scheduled_for >= first, Run.scheduled_for <= last)
    of_schedule: Select[Any] = columns.where(Run.schedule_id == schedule_id, *in_span, is_by_call())
    return force_index(of_schedule, Run, FIRE_TIME_INDEX)


@in_index_order
def reasons(
    session: Session, *, schedule_id: int, instants: Collection[datetime]
) -> Mapping[datetime, str | None]:
    """Return the reasons of the skipped fire times."""
    if not instants:
        return {}
    columns: Any = select(Run.scheduled_for, Run.error)
    statement = force_index(columns, Run, FIRE_TIME_INDEX).where(
        Run.schedule_id == schedule_id, Run.scheduled_for.in_(instants), is_by_call()
    )
    return {row.scheduled_for: row.error for row in session.execute(statement)}


@in_index_order
def remove(session: Session, *, schedule_id: int, instants: Collection[datetime]) -> int:
    """Delete the rows of the skipped fire times and return their number."""
    if not instants:
        return 0
    statement = delete(Run).where(
        Run.schedule_id == schedule_id, Run.scheduled_for.in_(instants), is_by_call()
    )
    return execute_dml(session, statement)


@in_index_order
def remove_future(session: Session, *, schedule_id: int, now: datetime) -> None:
    """Delete the rows of the skipped fire times after ``now`` of a schedule."""
    of_schedule = delete(Run).where(Run.schedule_id == schedule_id)
    execute_dml(session, of_schedule.where(Run.scheduled_for > now, is_by_call()))


@in_index_order
def remove_future_of_owner(session: Session, *, owner: str, now: datetime) -> None:
    """Do the same for all schedules of ``owner``."""
    of_owner = delete(Run).where(Run.owner == owner, Run.schedule_id.is_not(None))
    execute_dml(session, of_owner.where(Run.scheduled_for > now, is_by_call()))
