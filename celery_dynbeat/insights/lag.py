"""The lag and the duration of runs, and percentiles of them. Pure functions."""

import math
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from celery_dynbeat.common import states
from celery_dynbeat.db.models import Origin
from celery_dynbeat.store.rollups import LAG_BOUNDS, Figures, names_of


def lag_of(row: Any) -> timedelta | None:
    """Return the lag of the run in ``row``. None unless the schedule made it and it was sent."""
    if row.sent_at is None or row.origin != Origin.SCHEDULE:
        return None
    return states.lag_of(sent_at=row.sent_at, due_at=row.fire_at, ready_at=row.ready_at)


def duration_of(row: Any) -> timedelta | None:
    """Return the time from start to end, at least zero, because two workers' clocks can differ."""
    if row.started_at is None or row.finished_at is None:
        return None
    duration: timedelta = row.finished_at - row.started_at
    return max(duration, timedelta(0))


def percentile(values: Iterable[timedelta], fraction: float) -> timedelta | None:
    """Return the smallest value that at least ``fraction`` of the values do not exceed.

    This is the nearest-rank percentile. The result is None if there is no value.
    """
    ordered = sorted(values)
    # Rounded, because the product of floats has an error.
    rank = math.ceil(round(fraction * len(ordered), 6))
    return ordered[max(rank, 1) - 1] if ordered else None


def lag_percentile(figures: Figures, fraction: float) -> timedelta | None:
    """Return the percentile of the lags, or None if there is no lag.

    Within a bucket, the lags count as evenly spread, as in ``histogram_quantile`` of Prometheus.
    """
    rest = fraction * sum(figures.lags.values())
    lower = 0.0
    for name in names_of(LAG_BOUNDS):
        number = figures.lags.get(name, 0)
        upper = min(float(name), figures.lag_max)
        if number and rest <= number:
            return timedelta(seconds=lower + max(upper - lower, 0) * rest / number)
        rest, lower = rest - number, upper
    return timedelta(seconds=figures.lag_max) if figures.lags else None
