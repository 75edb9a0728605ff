"""The frame of a chart with axes: the plot, its grid and its labels.

The labels of values stand left of the plot, in a margin that the style sheet sets.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from xml.etree.ElementTree import Element

from celery_dynbeat.flower.charts.scales import (
    Scale,
    TimeScale,
    TimeTick,
    clock_changes,
    day_label,
    is_daily,
    time_step,
    time_ticks,
)
from celery_dynbeat.flower.charts.svg import add, percent, svg

#: A label nearer to an end of the axis would leave the chart if it were centred.
_EDGE = 0.06
#: The days that a narrow chart has room for, and the room that a day needs.
_MAX_NARROW_DAYS = 3
_DAY_WIDTH = 0.2
_LINE_HEIGHT = 16


def add_plot(parent: Element, *, label: str, height: float) -> Element:
    """Append the plot of a chart."""
    plot = svg("dynbeat-plot", role="group", aria_label=label, width="100%", height=height)
    parent.append(plot)
    return plot


def add_axes(
    root: Element,
    time: TimeScale,
    values: Scale,
    ticks: Sequence[float],
    *,
    height: float,
    text: Callable[[float], str],
    label: str,
) -> Element:
    """Append a plot with both axes, and return it."""
    plot = add_plot(root, label=label, height=height + time_labels_height(time))
    add_value_axis(plot, values, ticks, height=height, text=text)
    add_time_grid(plot, time, height=height)
    add_time_labels(plot, time, times_y=height + 16, days_y=height + 32)
    add_clock_change_labels(plot, time, y=-5)
    return plot


def time_labels_height(scale: TimeScale) -> float:
    """Return the height of the labels of a time axis: one line of dates, or times and days."""
    lines = 1 if is_daily(time_step(scale.start_at, scale.end_at)) else 2
    return lines * _LINE_HEIGHT + 6


def add_time_grid(plot: Element, scale: TimeScale, *, height: float | str) -> None:
    """Append a line for each tick and for each clock change."""
    grid = add(plot, "g", class_="dynbeat-axis")
    for tick in time_ticks(scale.start_at, scale.end_at):
        kind = "dynbeat-grid dynbeat-grid-major" if tick.is_major else "dynbeat-grid"
        _add_vertical(grid, scale.position(tick.at), height, class_=kind)
    for change in clock_changes(scale.start_at, scale.end_at):
        group = add(grid, "g", class_="dynbeat-clock-change")
        add(group, "title", f"The clock changes by {change.label} to {change.at:%H:%M}")
        _add_vertical(group, scale.position(change.at), height)


def add_time_labels(plot: Element, scale: TimeScale, *, times_y: float, days_y: float) -> None:
    """Append the labels of the ticks, and of the days if the ticks are times.

    ``times_y`` and ``days_y`` are the baselines of the text.
    """
    ticks = time_ticks(scale.start_at, scale.end_at)
    labels = add(plot, "g", class_="dynbeat-axis")
    for index, tick in enumerate(ticks):
        # A narrow chart shows every second label.
        kind = "dynbeat-tick-odd" if index % 2 else None
        _add_label(labels, tick.label, scale.position(tick.at), times_y, class_=kind)
    if is_daily(time_step(scale.start_at, scale.end_at)):
        return
    days = _days(scale, ticks)
    for index, at in enumerate(days):
        is_hidden = len(days) > _MAX_NARROW_DAYS and index % 2
        kind = f"dynbeat-tick-day{' dynbeat-tick-odd' if is_hidden else ''}"
        _add_label(labels, day_label(at), scale.position(at), days_y, class_=kind)


def add_clock_change_labels(plot: Element, scale: TimeScale, *, y: float) -> None:
    """Append the shift of each clock change; ``y`` is the baseline of the text."""
    changes = clock_changes(scale.start_at, scale.end_at)
    labels = add(plot, "g", class_="dynbeat-axis") if changes else plot
    for change in changes:
        _add_label(labels, f"clock {change.label}", scale.position(change.at), y, class_=None)


def add_value_axis(
    plot: Element,
    scale: Scale,
    ticks: Sequence[float],
    *,
    height: float,
    text: Callable[[float], str],
) -> None:
    """Append a grid line and a label at the left for each of ``ticks``."""
    axis = add(plot, "g", class_="dynbeat-axis")
    for tick in ticks:
        y = height * (1 - scale.position(tick))
        add(axis, "line", class_="dynbeat-grid", x1=0, y1=y, x2="100%", y2=y)
        add(axis, "text", text(tick), x=-8, y=y + 4, text_anchor="end")


def add_now(plot: Element, scale: TimeScale, now: datetime | None, *, height: float | str) -> None:
    """Append the line of the current time, unless it is outside the plot."""
    if now is not None and 0 <= scale.position(now) <= 1:
        group = _add_now_group(plot, "dynbeat-now", now)
        _add_vertical(group, scale.position(now), height)


def add_now_arrow(plot: Element, scale: TimeScale, now: datetime | None, *, y: float) -> None:
    """Append an arrow that points down at ``y`` to the line of the current time."""
    if now is not None and 0 <= scale.position(now) <= 1:
        group = _add_now_group(plot, "dynbeat-now-arrow", now)
        place = add(group, "svg", x=percent(scale.position(now)), y=y, overflow="visible")
        add(place, "path", d="M-4.5-6h9l-4.5 6Z")


def _add_now_group(plot: Element, class_name: str, now: datetime) -> Element:
    group = add(plot, "g", class_=class_name)
    add(group, "title", f"now: {now:%H:%M:%S}")
    return group


def _days(scale: TimeScale, ticks: Sequence[TimeTick]) -> list[datetime]:
    """Return where a day is named: at midnights, and at the start if there is room."""
    midnights = [tick.at for tick in ticks if tick.is_major]
    has_room = not midnights or scale.position(midnights[0]) >= _DAY_WIDTH
    return [scale.start_at, *midnights] if has_room else midnights


def _add_vertical(
    parent: Element, x: float, height: float | str, *, class_: str | None = None
) -> None:
    add(parent, "line", class_=class_, x1=percent(x), y1=0, x2=percent(x), y2=height)


def _add_label(parent: Element, text: str, x: float, y: float, *, class_: str | None) -> None:
    anchor = "start" if x < _EDGE else "end" if x > 1 - _EDGE else "middle"
    add(parent, "text", text, class_=class_, x=percent(x), y=y, text_anchor=anchor)
