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


def test_a_sparkline_is_in_proportion_to_zero():
    [[first, second, third]] = lines(parse(sparkline([0, 5, 10], label="Lag")))

    assert second[1] == pytest.approx((first[1] + third[1]) / 2)
    assert second[0] == pytest.approx((first[0] + third[0]) / 2)
    assert third[1] < first[1]


def test_the_last_value_of_a_sparkline_has_a_dot():
    assert with_class(parse(sparkline([1, 2], label="Lag")), "dynbeat-dot")
    assert not with_class(parse(sparkline([1, None], label="Lag")), "dynbeat-dot")


def test_a_line_passes_through_the_middle_of_each_span():
    [[first, second]] = lines(chart([point(0), point(1)]))

    assert (first[0], second[0]) == pytest.approx((50, 150))


def test_values_are_in_proportion_on_a_linear_axis():
    root = chart([point(0, 0.5), point(1, 1.0)])

    assert axis_labels(root)[0] == "0"
    [[first, second]] = lines(root)
    assert HEIGHT - first[1] == pytest.approx((HEIGHT - second[1]) / 2)


def test_a_wide_range_is_drawn_on_a_logarithmic_axis():
    root = chart([point(0, 0.01), point(1, 0.1), point(2, 1.0)])

    assert axis_labels(root) == ["10 ms", "100 ms", "1 s"]
    [[first, second, third]] = lines(root)
    assert first[1] - second[1] == pytest.approx(second[1] - third[1])


def test_a_span_without_runs_is_a_gap():
    root = chart([point(0), point(1), point(2, None), point(3)])

    assert [len(line) for line in lines(root)] == [2, 2]
    assert len(with_class(root, "dynbeat-point")) == 3


def test_a_point_between_two_gaps_is_a_dot_with_a_line_to_the_maximum():
    root = chart([point(0), point(1, None), point(2, 1.0, 2.0), point(3, None)])

    shown = [dot for dot in list(root.find("svg")) if dot.tag == "circle"]
    assert [length(dot, "cx") for dot in shown] == [0.05, 0.25]
    assert length(shown[1], "cy") == HEIGHT / 2
    reach = [line for line in with_class(root, "dynbeat-line-max") if line.tag == "line"]
    assert (length(reach[1], "y1"), length(reach[1], "y2")) == (0, HEIGHT / 2)


def test_the_band_reaches_from_the_median_to_the_maximum():
    root = chart([point(0, 1.0, 2.0), point(1, 1.0, 4.0)])

    [median], [most], [band] = (
        lines(root, f"dynbeat-{name}") for name in ("line", "line-max", "area")
    )
    assert sorted(band) == sorted([*median, *most])
    assert all(high < low for (_, high), (_, low) in zip(most, median, strict=True))


def test_a_failure_is_at_its_time_and_duration():
    [mark] = with_class(chart([point(0)], [dot(5, 0.5)]), "dynbeat-failure")
    place = mark.find("svg")

    assert (length(place, "x"), length(place, "y")) == (0.5, HEIGHT / 2)
    assert mark.get("href") == "/run/1"


def test_a_failure_without_a_duration_is_on_the_axis_of_time():
    [mark] = with_class(chart([], [dot(5, None)]), "dynbeat-failure")

    assert length(mark.find("svg"), "y") == HEIGHT


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


def test_a_chart_without_runs_says_so():
    assert [text.text for text in with_class(chart([]), "dynbeat-no-data")] == ["No runs"]
