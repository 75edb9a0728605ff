"""Lines and areas through points, as the path data of SVG."""

from collections.abc import Iterable, Sequence

from celery_dynbeat.flower.charts.svg import number

Point = tuple[float, float]


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
