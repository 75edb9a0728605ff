"""A sparkline, and a chart of lag or duration over time.

The chart has the median as a line, the maximum as a band, and failures as diamonds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from xml.etree.ElementTree import Element

from celery_dynbeat.flower.charts.plot import add_axes
from celery_dynbeat.flower.charts.scales import (
    DurationAxis,
    LinearScale,
    TimeScale,
    duration_axis,
    format_tick,
)
from celery_dynbeat.flower.charts.svg import (
    Tone,
    add,
    add_mark,
    number,
    percent,
    render,
    svg,
    tone_class,
)

Point = tuple[float, float]
#: Room for the stroke and the dot of the last value.
_PADDING = 2.5
_HEIGHT = 160
#: Paths cannot use percentages. Theirs is a coordinate system of this width, stretched to the plot.
_PATH_WIDTH = 1000


def segments(points: Iterable[Point | None]) -> list[list[Point]]:
    """Return the runs of points between gaps, which are None."""
    found: list[list[Point]] = []
    is_open = False
    for point in points:
        if point is None:
            is_open = False
        elif is_open:
            found[-1].append(point)
        else:
            found.append([point])
            is_open = True
    return found


def line_path(points: Sequence[Point]) -> str:
    """Return a line through ``points``. A single point is a dot if the line has round ends."""
    drawn = points if len(points) > 1 else [*points, *points]
    return _move_to(drawn)


def area_path(points: Sequence[Point], *, bottom: float) -> str:
    """Return the area between ``points`` and ``bottom``."""
    return band_path(points, [(x, bottom) for x, _ in points])


def band_path(upper: Sequence[Point], lower: Sequence[Point]) -> str:
    """Return the area between two lines."""
    return f"{_move_to([*upper, *reversed(lower)])}Z"


def _move_to(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)


def sparkline(
    values: Sequence[float | None], *, label: str, width: int = 80, height: int = 20
) -> str:
    """Return the line through ``values``, from zero to the largest. None leaves a gap."""
    root = svg(
        "dynbeat-sparkline",
        role="img",
        aria_label=label,
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
    )
    points = _points(values, width=width, height=height)
    bottom = height - _PADDING
    add(root, "line", class_="dynbeat-baseline", x1=0, y1=bottom, x2=width, y2=bottom)
    for segment in segments(points):
        add(root, "path", class_="dynbeat-area", d=area_path(segment, bottom=bottom))
        add(root, "path", class_="dynbeat-line", d=line_path(segment))
    _add_last_dot(root, points)
    return render(root)


def _points(
    values: Sequence[float | None], *, width: int, height: int
) -> list[tuple[float, float] | None]:
    known = [value for value in values if value is not None]
    scale = LinearScale(min([0.0, *known]), max([0.0, *known]))
    pitch = (width - 2 * _PADDING) / max(len(values) - 1, 1)
    return [
        None
        if value is None
        else (
            _PADDING + index * pitch,
            height - _PADDING - scale.position(value) * (height - 2 * _PADDING),
        )
        for index, value in enumerate(values)
    ]


def _add_last_dot(root: Element, points: Sequence[tuple[float, float] | None]) -> None:
    if points and points[-1] is not None:
        x, y = points[-1]
        add(root, "circle", class_="dynbeat-dot", cx=x, cy=y, r=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePoint:
    """The runs of ``[start_at, end_at)``. Values are in seconds. None is a gap in the line."""

    start_at: datetime
    end_at: datetime
    p50: float | None
    max: float | None
    title: str


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
    plot = add_axes(
        root, scale, axis.scale, axis.ticks, height=_HEIGHT, text=format_tick, label=label
    )
    _add_lines(plot, points, scale, axis)
    for point in points:
        _add_point(plot, point, scale, axis)
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


def _add_point(plot: Element, point: LinePoint, scale: TimeScale, axis: DurationAxis) -> None:
    """Append the area that shows the title of a point, and the dot that then marks the point."""
    if point.p50 is None:
        return
    left, right = scale.clamped(point.start_at), scale.clamped(point.end_at)
    mark = add_mark(plot, "dynbeat-point", title=point.title, href=None)
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
