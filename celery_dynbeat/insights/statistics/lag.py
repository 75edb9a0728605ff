"""The lag of runs, and percentiles of it. Pure functions."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from celery_dynbeat.common import states
from celery_dynbeat.db.models import Origin


def lag_of(row: Any) -> timedelta | None:
    """Return the lag of the run in ``row``. None unless the schedule made it and it was sent."""
    if row.sent_at is None or row.origin != Origin.SCHEDULE:
        return None
    return states.lag_of(sent_at=row.sent_at, due_at=row.scheduled_for, ready_at=row.ready_at)


def percentile(weighted: Iterable[tuple[timedelta, float]], fraction: float) -> timedelta | None:
    """Return the smallest value that at least ``fraction`` of the weight does not exceed.

    This is the nearest-rank percentile. The result is None if there is no value.
    """
    ordered = sorted(weighted)
    rest = fraction * sum(weight for _, weight in ordered)
    for value, weight in ordered:
        rest -= weight
        # The sum of floats has an error.
        if rest <= 1e-9:  # noqa: PLR2004 - far below the weight of one run
            return value
    return ordered[-1][0] if ordered else None
