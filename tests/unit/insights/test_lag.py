"""Percentiles of lags: the nearest rank, or its bucket."""

import math
from bisect import bisect_left
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat.common.states import lag_of
from celery_dynbeat.insights.lag import lag_percentile, percentile
from celery_dynbeat.store.rollups import LAG_BOUNDS, Figures, names_of

SECONDS = st.integers(0, 100).map(lambda number: timedelta(seconds=number))
FRACTIONS = st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0])
LAGS = st.lists(st.floats(0, 20_000), min_size=1)


@given(st.lists(SECONDS, min_size=1), FRACTIONS)
def test_it_is_the_nearest_rank(values, fraction):
    rank = math.ceil(round(fraction * len(values), 6))

    assert percentile(values, fraction) == sorted(values)[rank - 1]


@given(LAGS, FRACTIONS)
def test_the_percentile_of_counted_lags_is_in_the_bucket_of_the_nearest_rank(lags, fraction):
    names = names_of(LAG_BOUNDS)
    counts = Counter(names[bisect_left(LAG_BOUNDS, lag)] for lag in lags)
    rank = math.ceil(round(fraction * len(lags), 6))
    nearest = bisect_left(LAG_BOUNDS, sorted(lags)[rank - 1])

    found = lag_percentile(Figures(lags=counts, lag_max=max(lags)), fraction).total_seconds()

    bounds = (0, *LAG_BOUNDS, math.inf)
    assert bounds[nearest] - 1e-5 <= found <= bounds[nearest + 1] + 1e-5
    assert found <= max(lags) + 1e-5


@pytest.mark.parametrize(
    ("ready", "lag"),
    [(None, 10), (8, 2), (60, 0)],
    ids=["no wait", "a wait", "a retry that waited"],
)
def test_the_lag_counts_from_the_end_of_a_wait(ready, lag):
    due_at = datetime(2026, 11, 21, 9, tzinfo=UTC)
    ready_at = None if ready is None else due_at + timedelta(seconds=ready)

    found = lag_of(sent_at=due_at + timedelta(seconds=10), due_at=due_at, ready_at=ready_at)

    assert found == timedelta(seconds=lag)


def test_without_a_value_there_is_no_percentile():
    assert percentile([], 0.5) is None
    assert lag_percentile(Figures(), 0.5) is None
