"""The timeline: bars from start to end, lanes, and fire times to come."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_dynbeat.flower.charts.svg import Tone
from celery_dynbeat.flower.charts.timeline import (
    TimelineBar,
    TimelineRow,
    TimelineTick,
    timeline,
    timeline_legend,
)
from tests.support.chart_elements import length, parse, with_class

START = datetime(2026, 11, 22, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
NOW = START + 60 * MINUTE
END = START + 100 * MINUTE


def bar(start, end, status="succeeded"):
    return TimelineBar(
        start_at=START + start * MINUTE,
        end_at=None if end is None else START + end * MINUTE,
        status=status,
        title=f"{start}",
        href="/run",
    )


def tick(minute):
    return TimelineTick(at=START + minute * MINUTE, title=f"{minute}", href=None)


def row(bars=(), ticks=(), label="digest"):
    return TimelineRow(label=label, href="/schedule", bars=bars, ticks=ticks)


def chart(*rows, start=START, end=END, now=NOW):
    return parse(timeline(rows, start_at=start, end_at=end, now=now, label="Timeline"))


def rects(*bars):
    """Return the rectangle of each bar, in the order given."""
    return [mark.find("rect") for mark in with_class(chart(row(bars)), "dynbeat-bar")]


def test_a_bar_reaches_from_start_to_end():
    [rect] = rects(bar(10, 35))

    assert (length(rect, "x"), length(rect, "width")) == (0.1, 0.25)


def test_a_run_without_an_end_reaches_to_now():
    [rect] = rects(bar(50, None, "running"))

    assert (length(rect, "x"), length(rect, "width")) == pytest.approx((0.5, 0.1))


@example(spans=[(0, 2), (0, 2), (0, 2), (0, 2), (1, 1)])
@given(
    spans=st.lists(
        st.tuples(st.integers(-200, 200), st.integers(0, 200)).map(lambda s: (s[0], s[0] + s[1])),
        max_size=20,
    )
)
def test_bars_lie_within_their_row_and_do_not_overlap_unless_five_run_at_once(spans):
    shown = [bar(start, end) for start, end in spans]
    boxes = []
    for (start, end), rect in zip(spans, rects(*shown), strict=True):
        top = length(rect, "y")
        assert 0 <= length(rect, "x") <= length(rect, "x") + length(rect, "width") <= 1.0001
        assert 0 <= top < top + length(rect, "height") <= 20
        boxes.append((start, end, top))
    # A run without a duration needs a lane too.
    ends = [(start, max(end, start + 1)) for start, end in spans]
    if all(sum(start <= at < end for start, end in ends) <= 4 for at, _ in spans):
        for index, (start, end, top) in enumerate(boxes):
            for other_start, other_end, other_top in boxes[:index]:
                assert top != other_top or end <= other_start or other_end <= start


def test_a_fire_time_is_at_its_instant():
    [mark] = with_class(chart(row(ticks=[tick(80)])), "dynbeat-fire-time")

    assert (length(mark.find("svg"), "x"), mark.findtext("title")) == (0.8, "80")


def test_a_clock_change_is_a_line_with_its_shift():
    start = datetime(2026, 10, 25, tzinfo=ZoneInfo("Europe/Berlin"))
    root = chart(start=start, end=start + timedelta(hours=9), now=start)

    [change] = with_class(root, "dynbeat-clock-change")
    # Two hours after midnight, 3 of the 10 hours have passed.
    assert length(change.find("line"), "x1") == pytest.approx(0.3)
    assert "clock \N{MINUS SIGN}1 h" in [text.text for text in root.iter("text")]


def test_the_legend_has_each_tone_and_the_planned_fire_times():
    root = parse(timeline_legend())

    assert all(with_class(root, f"dynbeat-tone-{tone}") for tone in Tone)
    assert with_class(root, "dynbeat-fire-time")
    assert len(list(root.iter("span"))) == len(Tone) + 1
