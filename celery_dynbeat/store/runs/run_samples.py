"""Statistics of the runs of the last minutes, without reading all of them.

The id of a run begins with the time of its creation. The runs of a span of time are therefore a
range of the primary key, whose end costs little to read.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Integer, Row, Select, bindparam, func, select
from sqlalchemy.orm import Session

from celery_dynbeat.common.run_ids import first_run_id
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.models import Run
from celery_dynbeat.db.statements import force_index, in_index_order
from celery_dynbeat.store.runs.run_filters import UNSUCCESSFUL
from celery_dynbeat.store.span_reads import Span, read_spans, within_span

#: The columns of a sampled run.
_SAMPLED: tuple[Any, ...] = (
    *(Run.id, Run.status, Run.origin, Run.scheduled_for),
    *(Run.sent_at, Run.ready_at),
)


def spans_of(start: datetime, *, length: timedelta, count: int) -> Sequence[Span]:
    """Return ``count`` spans of ids, one for each of the equal spans of time from ``start``."""
    bounds = [first_run_id(start + number * length) for number in range(count + 1)]
    return [Span(*bounds[number : number + 2]) for number in range(count)]


@in_index_order
def sample(session: Session, *, spans: Sequence[Span], limit: int) -> Sequence[Row[Any]]:
    """Return the newest ``limit`` runs of each span of ids, in any order.

    The columns are id, status, origin, scheduled_for, sent_at and ready_at, and the ``number`` of
    the span.
    """
    return read_spans(session, _sample, spans, key=Run.id, values={"row_limit": limit})


def _sample(number: Any, start: Any, end: Any) -> Select[Any]:
    return _newest(start, end, number.label("number"), *_SAMPLED)


@in_index_order
def count(session: Session, *, spans: Sequence[Span], limit: int) -> Sequence[int]:
    """Return the number of runs in each span of ids, at most ``limit``."""
    rows = read_spans(session, _count, spans, key=Run.id, values={"row_limit": limit})
    found = {row.number: row.total for row in rows}
    return [found[number] for number in range(len(spans))]


def _count(number: Any, start: Any, end: Any) -> Select[Any]:
    read = _newest(start, end, Run.id).subquery()
    return select(number.label("number"), func.count().label("total")).select_from(read)


def _newest(start: Any, end: Any, *columns: Any) -> Select[Any]:
    statement: Select[Any] = (
        force_index(select(*columns), Run, "PRIMARY")
        .where(Run.id >= start, Run.id < end)
        .order_by(Run.id.desc())
        .limit(bindparam("row_limit", type_=Integer))
    )
    return within_span(statement, start)


@in_index_order
def newest(session: Session, *, since: datetime, limit: int) -> Sequence[Row[Any]]:
    """Return up to ``limit`` runs created since an instant, newest first, with these columns."""
    statement = _in_order(*_SAMPLED).where(Run.id >= first_run_id(since))
    return session.execute(statement.limit(limit)).all()


@in_index_order
def failed(session: Session, *, since: datetime, limit: int) -> tuple[Sequence[str], bool]:
    """Return the ids of runs created since an instant that failed or were lost, newest first.

    The second value is whether these are all. PostgreSQL has an index of such runs and returns the
    newest ``limit``. On other databases, they are searched among the newest ``limit`` runs of any
    status.
    """
    of_span = [Run.id >= first_run_id(since)]
    # These are literals, because the planner must see that the condition implies the condition of
    # the index.
    statuses: Any = bindparam("statuses", list(UNSUCCESSFUL), expanding=True, literal_execute=True)
    is_failed = Run.status.in_(statuses)
    if capabilities_of(session.get_bind(Run).dialect).has_partial_indexes:
        of_span.append(is_failed)
    last = _in_order(Run.id).where(*of_span).offset(limit - 1).limit(1)
    end: str | None = session.scalar(last)
    if end is not None:
        of_span.append(Run.id >= end)
    return session.scalars(_in_order(Run.id).where(*of_span, is_failed)).all(), end is None


def _in_order(*columns: Any) -> Select[Any]:
    statement: Select[Any] = force_index(select(*columns), Run, "PRIMARY")
    return statement.order_by(Run.id.desc())
