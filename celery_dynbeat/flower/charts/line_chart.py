"""Lag or duration over time: the median as a line, the maximum as a band, failures as diamonds."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from xml.etree.ElementTree import Element

from celery_dynbeat.flower.charts.paths import Point, band_path, line_path, segments
from celery_dynbeat.flower.charts.plot import (
    add_clock_change_labels,
    add_plot,
    add_time_grid,
    add_time_labels,
    add_value_axis,
    time_labels_height,
)
from celery_dynbeat.flower.charts.scales import DurationAxis, TimeScale, duration_axis, format_tick
from celery_dynbeat.flower.charts.svg import add, add_mark, percent, render
from celery_dynbeat.flower.charts.tones import Tone, tone_class

_HEIGHT = 160
#: Paths cannot use percentages. Theirs is a coordinate system of this width, stretched to the plot.
_PATH_WIDTH = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePoint:
    """The runs of ``[start_at, end_at)``. Values are in seconds. None is a gap in the line."""

    start_at: datetime
    end_at: datetime
    p50: float | None
    max: float | None
    title: str
    href: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineDot:
    """A failure. If it has no value in seconds, it is drawn on the time axis."""

    at: datetime
    seconds: float | None
    title: str
    href: str | None


def line_chart(
    points: Sequence[LinePoint],
    *,
    dots: Sequence[LineDot] = (),
    start_at: datetime,
    end_at: datetime,
    label: str,
) -> str:
    """Return the chart of ``points``, oldest first, and ``dots`` in ``[start_at, end_at]``.

    Labels show the time zone of ``start_at``. The axis of values is logarithmic if the largest
    value is many times the smallest.
    """
    root = Element("div", {"class": "dynbeat-chart dynbeat-line-chart"})
    scale = TimeScale(start_at, end_at)
    axis = duration_axis(_seconds_of(points, dots))
    height = _HEIGHT + time_labels_height(scale)
    plot = add_plot(root, label=label, height=height)
    add_value_axis(plot, axis.scale, axis.ticks, height=_HEIGHT, text=format_tick)
    add_time_grid(plot, scale, height=_HEIGHT)
    add_time_labels(plot, scale, times_y=_HEIGHT + 16, days_y=_HEIGHT + 32)
    add_clock_change_labels(plot, scale, y=-5)
    _add_lines(plot, points, scale, axis)
    for index, point in enumerate(points):
        _add_point(plot, point, scale, axis, is_tab_stop=index == len(points) - 1)
    for index, dot in enumerate(dots):
        _add_dot(plot, dot, scale, axis, is_tab_stop=index == 0)
    if not _seconds_of(points, dots):
        add(plot, "text", "No runs", class_="dynbeat-no-data", x="50%", y=_HEIGHT / 2)
    return render(root)


def _seconds_of(points: Sequence[LinePoint], dots: Sequence[LineDot]) -> list[float]:
    values = [value for point in points for value in (point.p50, point.max)]
    return [value for value in (*values, *(dot.seconds for dot in dots)) if value is not None]


def _middle(point: LinePoint, scale: TimeScale) -> float:
    return (scale.position(point.start_at) + scale.position(point.end_at)) / 2


def _add_lines(
    plot: Element, points: Sequence[LinePoint], scale: TimeScale, axis: DurationAxis
) -> None:
    paths = add(
        plot,
        "svg",
        width="100%",
        height=_HEIGHT,
        viewBox=f"0 0 {_PATH_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
    )

    def place(point: LinePoint, seconds: float | None) -> Point | None:
        if point.p50 is None or point.max is None or seconds is None:
            return None
        return (_middle(point, scale) * _PATH_WIDTH, _y(seconds, axis))

    lower = segments(place(point, point.p50) for point in points)
    upper = segments(place(point, point.max) for point in points)
    for low, high in zip(lower, upper, strict=True):
        add(paths, "path", class_="dynbeat-area", d=band_path(high, low))
        add(paths, "path", class_="dynbeat-line-max", d=line_path(high))
        add(paths, "path", class_="dynbeat-line", d=line_path(low))
        if not low[1:]:
            _add_lone_point(plot, low[0], high[0])


def _add_lone_point(plot: Element, low: Point, high: Point) -> None:
    """Append what stands for the line and the band of a point between two gaps."""
    x = percent(low[0] / _PATH_WIDTH)
    add(plot, "line", class_="dynbeat-line-max", x1=x, y1=high[1], x2=x, y2=low[1])
    add(plot, "circle", class_="dynbeat-dot", cx=x, cy=low[1], r=3)


def _add_point(
    plot: Element, point: LinePoint, scale: TimeScale, axis: DurationAxis, *, is_tab_stop: bool
) -> None:
    """Append the area that shows the title of a point, and the dot that then marks the point."""
    if point.p50 is None:
        return
    left, right = scale.clamped(point.start_at), scale.clamped(point.end_at)
    mark = add_mark(
        plot, "dynbeat-point", title=point.title, href=point.href, is_tab_stop=is_tab_stop
    )
    add(
        mark,
        "rect",
        class_="dynbeat-hit",
        x=percent(left),
        y=0,
        width=percent(max(right - left, 0)),
        height=_HEIGHT,
    )
    add(
        mark,
        "circle",
        class_="dynbeat-dot",
        cx=percent(_middle(point, scale)),
        cy=_y(point.p50, axis),
        r=3.5,
    )


def _add_dot(
    plot: Element, dot: LineDot, scale: TimeScale, axis: DurationAxis, *, is_tab_stop: bool
) -> None:
    mark = add_mark(
        plot,
        f"dynbeat-failure {tone_class(Tone.FAILURE)}",
        title=dot.title,
        href=dot.href,
        is_tab_stop=is_tab_stop,
    )
    y = _HEIGHT if dot.seconds is None else _y(dot.seconds, axis)
    place = add(mark, "svg", x=percent(scale.clamped(dot.at)), y=y, overflow="visible")
    add(place, "path", d="M0-5L5 0L0 5L-5 0Z")


def _y(seconds: float, axis: DurationAxis) -> float:
    return _HEIGHT * (1 - axis.scale.position(seconds))
