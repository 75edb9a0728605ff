"""The histogram: heights of the parts of a bin, places of the bins."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat.flower.charts.histogram import histogram
from celery_dynbeat.insights.timeline import Bin
from tests.support.chart_elements import length, parse, with_class

START = datetime(2026, 11, 22, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
#: The height of the plot, in pixels.
HEIGHT = 200
counts = st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))


def fires(minute=0, past=0, failed=0, planned=0):
    start = START + minute * MINUTE
    return Bin(
        start_at=start,
        end_at=start + MINUTE,
        past=past,
        failed=failed,
        planned=planned,
        more=False,
    )


def minute_of(each):
    return int((each.start_at - START) / MINUTE)


def chart(bins, *, minutes=10, now=None, label="Fires"):
    end = START + minutes * MINUTE
    marks = {
        "title": lambda each: f"minute {minute_of(each)}",
        "href": lambda each: f"?bin={minute_of(each)}",
    }
    return parse(histogram(bins, start_at=START, end_at=end, now=now, label=label, **marks))


def parts(root, name):
    return [length(part, "height") for part in with_class(root, f"dynbeat-bar-{name}")]


def test_heights_are_in_proportion_to_counts():
    root = chart([fires(0, past=50), fires(1, past=100), fires(2, planned=25)])

    assert parts(root, "past") == [pytest.approx(HEIGHT / 2), pytest.approx(HEIGHT)]
    assert parts(root, "planned") == [pytest.approx(HEIGHT / 4)]


def test_failed_fires_are_the_hatched_share_of_the_past_ones():
    root = chart([fires(past=100, failed=25)])

    assert (parts(root, "failed"), parts(root, "past")) == ([50], [150])
    [failed], [pattern] = with_class(root, "dynbeat-bar-failed"), list(root.iter("pattern"))
    assert failed.get("fill") == f"url(#{pattern.get('id')})"


@given(shown=st.lists(counts, max_size=10))
def test_all_parts_lie_within_the_plot(shown):
    bins = [
        fires(minute, past=past + failed, failed=failed, planned=planned)
        for minute, (past, failed, planned) in enumerate(shown)
    ]
    for rect in chart(bins).iter("rect"):
        if (rect.get("class") or "").startswith("dynbeat-bar-"):
            assert 0 <= length(rect, "x") <= length(rect, "x") + length(rect, "width") <= 1
            assert length(rect, "y") >= 0
            assert length(rect, "y") + length(rect, "height") <= HEIGHT + 0.01
