"""Percentiles of lags: the nearest rank, as if each value occurred as often as its weight."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat.common.states import lag_of
from celery_dynbeat.insights.statistics.lag import percentile

SECONDS = st.integers(0, 100).map(lambda number: timedelta(seconds=number))
WEIGHTED = st.lists(st.tuples(SECONDS, st.integers(1, 9)), min_size=1)
FRACTIONS = st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0])


@given(WEIGHTED, FRACTIONS)
def test_it_is_the_nearest_rank_of_the_repeated_values(weighted, fraction):
    repeated = sorted(value for value, weight in weighted for _ in range(weight))

    rank = math.ceil(round(fraction * len(repeated), 6))
    assert percentile(weighted, fraction) == repeated[rank - 1]


@given(WEIGHTED, FRACTIONS, st.sampled_from([0.1, 1 / 3, 7.0]))
def test_only_the_ratio_of_the_weights_counts(weighted, fraction, factor):
    scaled = [(value, weight * factor) for value, weight in weighted]

    assert percentile(scaled, fraction) == percentile(weighted, fraction)


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
