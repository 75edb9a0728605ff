"""Run one bounded SELECT for each of many spans of an index.

A limit for each span cannot be part of one GROUP BY. On PostgreSQL the SELECT is a LATERAL
subquery, so its plan is made once. The other databases get a UNION ALL. Its text is constant: with
fewer spans than terms, the last terms get an empty span.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import Row, Select, bindparam, literal_column, select, union_all
from sqlalchemy.orm import Session

from celery_dynbeat.db import statements
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.db.statements import capabilities_in

#: Terms of a UNION. SQLite allows 500.
_TERMS = 50


class Span(NamedTuple):
    """The values of a column in [start, end)."""

    start: Any
    end: Any


#: Makes the SELECT for the number, the start and the end of a span. It has the column ``number``.
SpanQuery: TypeAlias = Callable[[Any, Any, Any], Select[Any]]


def read_spans(
    session: Session,
    query: SpanQuery,
    spans: Sequence[Span],
    *,
    key: Any,
    values: Mapping[str, Any],
) -> Sequence[Row[Any]]:
    """Return the rows of ``query`` for all spans, in any order.

    ``key`` is the column of the spans, ``values`` are the parameters of the query. The query is a
    function of a module or a value: the UNION of equal queries is built once.
    """
    if not spans:
        return []
    if capabilities_in(session).has_lateral:
        keys, numbered = (Schedule.id, key, key), [(n, *span) for n, span in enumerate(spans)]
        return session.execute(statements.lateral_for_rows(keys, numbered, query), values).all()
    found: list[Row[Any]] = []
    for first in range(0, len(spans), _TERMS):
        part = spans[first : first + _TERMS]
        rows = session.execute(_union(query, key), {**values, **_bounds(part, first)})
        found += [row for row in rows if row.number < len(spans)]
    return found


def within_span(statement: Select[Any], start: Any) -> Select[Any]:
    """Return a SELECT of one span, ``start`` being the span's, for use as a subquery.

    Without this, a subquery in a LATERAL subquery reads the rows of all spans.
    """
    given = getattr(start, "table", None)
    return statement if given is None else statement.correlate(given)


def _bounds(part: Sequence[Span], first: int) -> dict[str, Any]:
    empty = Span(part[-1].end, part[-1].end)
    padded = [*part, *[empty] * (_TERMS - len(part))]
    starts = {f"start_{n}": span.start for n, span in enumerate(padded)}
    return {"first": first, **starts, **{f"end_{n}": span.end for n, span in enumerate(padded)}}


# Cached: building it takes longer than executing it.
@lru_cache(maxsize=16)
def _union(query: SpanQuery, key: Any) -> Select[Any]:
    first = bindparam("first", type_=Schedule.id.type)
    terms = [
        query(
            first + literal_column(str(n)),
            bindparam(f"start_{n}", type_=key.type),
            bindparam(f"end_{n}", type_=key.type),
        ).subquery()
        for n in range(_TERMS)
    ]
    return select(union_all(*(select(term) for term in terms)).subquery())
