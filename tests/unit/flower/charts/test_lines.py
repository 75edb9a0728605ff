"""Sparklines, and the chart of lag and duration."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_dynbeat.flower.charts.lines import LineDot, LinePoint, line_chart, sparkline
from tests.support.chart_elements import length, parse, with_class

START = datetime(2026, 11, 1, tzinfo=UTC)
DAY = timedelta(days=1)
#: The height of the plot, in pixels.
HEIGHT = 160
values = st.lists(st.none() | st.floats(0, 1e6), max_size=60)


def points_of(path):
    return [tuple(map(float, pair.split())) for pair in re.split("[MLZ]", path.get("d")) if pair]


def lines(root, name="dynbeat-line"):
    return [points_of(path) for path in with_class(root, name) if path.tag == "path"]


def point(day, p50=1.0, maximum=None):
    start = START + day * DAY
    most = p50 if maximum is None else maximum
    return LinePoint(start_at=start, end_at=start + DAY, p50=p50, max=most, title=f"day {day}")


def chart(points, dots=(), days=10):
    end = START + days * DAY
    return parse(line_chart(points, dots=dots, start_at=START, end_at=end, label="Lag"))


def dot(day, seconds):
    return LineDot(at=START + day * DAY, seconds=seconds, title="failed", href="/run/1")


def axis_labels(root):
    return [text.text for text in root.iter("text") if text.get("x") == "-8"]


@given(numbers=values)
@example(numbers=[5e-324])
def test_a_sparkline_stays_within_its_box(numbers):
    root = parse(sparkline(numbers, label="Lag"))

    for line in lines(root):
        assert all(0 <= x <= 80 and 0 <= y <= 20 for x, y in line)


@given(numbers=values)
def test_a_sparkline_has_a_point_for_each_value_and_a_gap_for_each_none(numbers):
    drawn = lines(parse(sparkline(numbers, label="Lag")))

    known = "".join("x" if number is not None else " " for number in numbers)
    assert [len(line) for line in drawn] == [max(len(part), 2) for part in known.split()]


def test_a_wide_range_is_drawn_on_a_logarithmic_axis():
    root = chart([point(0, 0.01), point(1, 0.1), point(2, 1.0)])

    assert axis_labels(root) == ["10 ms", "100 ms", "1 s"]
    [[first, second, third]] = lines(root)
    assert first[1] - second[1] == pytest.approx(second[1] - third[1])


def test_a_span_without_runs_is_a_gap():
    root = chart([point(0), point(1), point(2, None), point(3)])

    assert [len(line) for line in lines(root)] == [2, 2]
    assert len(with_class(root, "dynbeat-point")) == 3


def test_a_failure_is_at_its_time_and_duration():
    [mark] = with_class(chart([point(0)], [dot(5, 0.5)]), "dynbeat-failure")
    place = mark.find("svg")

    assert (length(place, "x"), length(place, "y")) == (0.5, HEIGHT / 2)
    assert mark.get("href") == "/run/1"


@given(numbers=st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(1, 1e3)), max_size=10))
def test_every_point_and_failure_lies_within_the_plot(numbers):
    points = [point(day, p50, p50 * factor) for day, (p50, factor) in enumerate(numbers)]
    root = chart(points, [dot(day, p50) for day, (p50, _) in enumerate(numbers)])

    drawn = [
        pair
        for name in ("line", "line-max")
        for line in lines(root, f"dynbeat-{name}")
        for pair in line
    ]
    drawn += [
        (length(mark.find("svg"), "x"), length(mark.find("svg"), "y"))
        for mark in with_class(root, "dynbeat-failure")
    ]
    assert all(0 <= x <= 1000 and -0.01 <= y <= HEIGHT + 0.01 for x, y in drawn)
