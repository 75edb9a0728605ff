"""The strip of the last runs: order, heights and shapes."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat.common.states import Status
from celery_dynbeat.flower.charts.run_strip import run_strip
from celery_dynbeat.insights.history import RecentRun
from tests.support.chart_elements import length, parse, with_class

WIDTH, HEIGHT = 150, 20


def bar(status="succeeded", seconds=1.0, title="run"):
    return RecentRun(
        id=title,
        status=status,
        attempt=1,
        origin="schedule",
        fire_at=datetime(2026, 11, 21, tzinfo=UTC),
        fire_count=1,
        lag=None,
        queue_time=None,
        duration=None if seconds is None else timedelta(seconds=seconds),
        error=None,
    )


bars = st.lists(
    st.builds(bar, status=st.sampled_from(Status), seconds=st.none() | st.floats(0, 1e7)),
    max_size=40,
)


def strip(shown, **options):
    marks = {"title": lambda run: run.id, "href": lambda run: f"/run/{run.id}"}
    return parse(run_strip(shown, label="Last runs", **marks, **options))


def shapes(mark):
    """Return the rectangles that are drawn, without the area for the pointer."""
    return [each for each in mark.iter("rect") if each.get("class") is None]


def height(seconds, others):
    """Return the drawn height of a run of ``seconds`` between ``others``."""
    drawn = strip([bar(seconds=each) for each in (*others, seconds)])
    return length(shapes(with_class(drawn, "dynbeat-mark")[-1])[0], "height")


@given(shown=bars)
def test_every_shape_lies_within_the_strip(shown):
    root = strip(shown)

    assert root.get("viewBox") == f"0 0 {WIDTH} {HEIGHT}"
    for rect in root.iter("rect"):
        x, y = length(rect, "x"), length(rect, "y")
        assert x >= 0
        assert x + length(rect, "width") <= WIDTH
        assert y >= -0.001
        assert 0 < y + length(rect, "height") <= HEIGHT + 0.001


@given(shown=bars)
def test_the_newest_run_is_at_the_right_and_free_slots_at_the_left(shown):
    root = strip(shown)
    marks, empty = with_class(root, "dynbeat-mark"), with_class(root, "dynbeat-empty")

    assert (len(marks), len(empty)) == (min(len(shown), 30), max(30 - len(shown), 0))
    positions = [length(shape, "x") for shape in empty]
    positions += [length(shapes(mark)[0], "x") for mark in marks]
    assert positions == sorted(positions)
    assert len(set(positions)) == 30


def test_the_height_is_the_logarithm_of_the_duration():
    # From a tenth of the shortest to the longest: five decades, of which 10 s is at the third.
    low, middle, high = (height(seconds, [0.1, 1000]) for seconds in (0.1, 10, 1000))

    assert high == HEIGHT
    assert (middle - low) == pytest.approx(high - middle)


@pytest.mark.parametrize("status", Status)
def test_each_status_has_a_tone(status):
    [mark] = with_class(strip([bar(status)]), "dynbeat-mark")

    assert "dynbeat-tone-" in mark.get("class")
