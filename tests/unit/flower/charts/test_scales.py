"""Scales and the ticks of numbers and durations."""

from datetime import datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat.flower.charts.scales import (
    LogScale,
    TimeScale,
    count_ticks,
    duration_axis,
    duration_ticks,
)

durations = st.floats(min_value=1e-6, max_value=1e8)
NEW_YORK = ZoneInfo("America/New_York")


def test_equal_ratios_have_equal_distances_on_a_logarithmic_scale():
    scale = LogScale(0.01, 100)

    assert [scale.position(value) for value in (0.01, 0.1, 1, 10, 100)] == pytest.approx(
        [0, 0.25, 0.5, 0.75, 1]
    )


def test_elapsed_time_has_equal_distances_across_a_clock_change():
    # This day has 25 hours. Wall times would place 12:00 in its middle.
    midnight = datetime(2026, 11, 1, tzinfo=NEW_YORK)
    scale = TimeScale(midnight, datetime(2026, 11, 2, tzinfo=NEW_YORK))

    assert scale.position(datetime(2026, 11, 1, 12, tzinfo=NEW_YORK)) == pytest.approx(13 / 25)
    assert scale.position(datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK)) == pytest.approx(1.5 / 25)
    repeated = datetime(2026, 11, 1, 1, 30, fold=1, tzinfo=NEW_YORK)
    assert scale.position(repeated) == pytest.approx(2.5 / 25)


@given(highest=durations, count=st.integers(2, 8))
def test_ticks_of_durations_are_even_and_enclose_the_values(highest, count):
    ticks = duration_ticks(highest, count=count)
    steps = [later - earlier for earlier, later in pairwise(ticks)]

    assert ticks[0] == 0
    assert ticks[-1] >= highest * (1 - 1e-6)
    assert ticks[-2] < highest
    assert steps == pytest.approx([steps[0]] * len(steps))
    assert len(ticks) <= count + 2


@given(highest=st.integers(0, 10**9))
def test_ticks_of_counts_are_whole_and_enclose_the_values(highest):
    ticks = count_ticks(highest)

    assert ticks[-1] >= max(highest, 1)
    assert all(tick == int(tick) for tick in ticks)
    assert 2 <= len(ticks) <= 6


@given(values=st.lists(durations, min_size=1, max_size=20))
def test_every_value_lies_on_the_axis(values):
    axis = duration_axis(values)

    assert all(axis.scale.position(value) >= -1e-9 for value in values)
    assert axis.scale.position(max(values)) <= 1 + 1e-6
    positions = [axis.scale.position(tick) for tick in axis.ticks]
    assert positions == sorted(positions)
    assert positions[0] == 0
    # A logarithmic axis has no tick after 400 days.
    assert positions[-1] == pytest.approx(1) or max(values) > 400 * 86_400


@pytest.mark.parametrize(("largest", "is_log"), [(0.5, False), (50, True)])
def test_an_axis_is_logarithmic_if_the_largest_value_is_many_times_the_smallest(largest, is_log):
    assert duration_axis([0.1, largest]).is_log is is_log
