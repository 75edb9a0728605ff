"""A series of numbers as a small line without axes."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from celery_dynbeat.flower.charts.paths import area_path, line_path, segments
from celery_dynbeat.flower.charts.scales import LinearScale
from celery_dynbeat.flower.charts.svg import add, render, svg

#: Room for the stroke and the dot of the last value.
_PADDING = 2.5


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
