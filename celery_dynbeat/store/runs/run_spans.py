"""The runs of one schedule, and their counts for many spans of fire times in one statement."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Integer, Row, Select, bindparam, case, func, select
from sqlalchemy.orm import Session

from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run, Schedule
from celery_dynbeat.db.statements import force_index, in_index_order
from celery_dynbeat.store.runs import FIRE_TIME_INDEX
from celery_dynbeat.store.runs.run_filters import UNSUCCESSFUL
from celery_dynbeat.store.span_reads import Span, read_spans, within_span

_TIMES = (Run.sent_at, Run.ready_at, Run.started_at, Run.finished_at)


class RunCounts(NamedTuple):
    """The numbers of rows of a span. If ``total`` is the limit, all are lower bounds."""

    total: int = 0
    failed: int = 0
    skipped: int = 0


@in_index_order
def count_of_schedule(
    session: Session, *, schedule_id: int, spans: Sequence[Span], limit: int
) -> Sequence[RunCounts]:
    """Count the runs of a schedule in each span of fire times; ``limit`` is per span."""
    values = {"schedule_id": schedule_id, "row_limit": limit}
    rows = read_spans(session, _counts, spans, key=Run.scheduled_for, values=values)
    found = {
        row.number: RunCounts(int(row.total), int(row.failed or 0), int(row.skipped or 0))
        for row in rows
    }
    return [found.get(number, RunCounts()) for number in range(len(spans))]


def _counts(number: Any, start: Any, end: Any) -> Select[Any]:
    read = _newest(start, end, Run.status).subquery()
    return select(
        number.label("number"),
        func.count().label("total"),
        func.sum(case((read.c.status.in_(UNSUCCESSFUL), 1), else_=0)).label("failed"),
        func.sum(case((read.c.status == Status.SKIPPED, 1), else_=0)).label("skipped"),
    ).select_from(read)


def _newest(start: Any, end: Any, *columns: Any) -> Select[Any]:
    """Return the SELECT of the newest runs of a span."""
    of_schedule = Run.schedule_id == bindparam("schedule_id", type_=Schedule.id.type)
    statement: Select[Any] = (
        force_index(select(*columns), Run, FIRE_TIME_INDEX)
        .where(of_schedule, Run.scheduled_for >= start, Run.scheduled_for < end)
        .order_by(Run.scheduled_for.desc())
        .limit(bindparam("row_limit", type_=Integer))
    )
    return within_span(statement, start)


@in_index_order
def newest_of_schedule(
    session: Session, *, schedule_id: int, since: datetime, until: datetime, limit: int
) -> Sequence[Row[Any]]:
    """Return the newest ``limit`` runs with since <= fire time < until.

    The columns are id, status, attempt, origin, scheduled_for, sent_at, ready_at, started_at and
    finished_at.
    """
    columns = (Run.id, Run.status, Run.attempt, Run.origin, Run.scheduled_for)
    statement = _newest(since, until, *columns, *_TIMES)
    return session.execute(statement, {"schedule_id": schedule_id, "row_limit": limit}).all()
