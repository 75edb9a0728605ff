"""The last runs of several schedules.

Each schedule has its own SELECT with a LIMIT, which reads the end of its part of the unique index
(schedule_id, scheduled_for). One SELECT of all schedules would read their whole histories.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Integer, Row, Select, bindparam, func, select
from sqlalchemy.orm import Session

from celery_dynbeat.db.models import Run
from celery_dynbeat.db.statements import force_index, in_index_order
from celery_dynbeat.db.types import UtcDateTime
from celery_dynbeat.store.runs import FIRE_TIME_INDEX
from celery_dynbeat.store.span_reads import Span, read_spans

#: Characters of an error.
MAX_ERROR = 200
_COLUMNS: tuple[Any, ...] = (
    Run.schedule_id,
    Run.id,
    Run.status,
    Run.origin,
    Run.scheduled_for,
    Run.nominal_at,
    Run.fire_count,
    Run.attempt,
    Run.sent_at,
    Run.ready_at,
    Run.started_at,
    Run.finished_at,
    func.substr(Run.error, 1, MAX_ERROR, type_=Run.error.type).label("error"),
)


@in_index_order
def read(
    session: Session, *, schedule_ids: Sequence[int], until: datetime, limit: int
) -> Sequence[Row[Any]]:
    """Return the last ``limit`` runs of each schedule with ``scheduled_for`` up to ``until``.

    The order of the rows is any.
    """
    spans = [Span(schedule_id, schedule_id + 1) for schedule_id in schedule_ids]
    values = {"until": until, "row_limit": limit}
    return read_spans(session, _newest, spans, key=Run.schedule_id, values=values)


def _newest(number: Any, start: Any, end: Any) -> Select[Any]:
    statement: Select[Any] = (
        force_index(select(number.label("number"), *_COLUMNS), Run, FIRE_TIME_INDEX)
        .where(
            Run.schedule_id == start,
            Run.scheduled_for <= bindparam("until", type_=UtcDateTime),
            # The span of a term that is not used is empty.
            start < end,
        )
        .order_by(Run.scheduled_for.desc())
        .limit(bindparam("row_limit", type_=Integer))
    )
    return statement
