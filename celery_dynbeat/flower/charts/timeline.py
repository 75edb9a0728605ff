"""Past runs and future fire times of many schedules on one axis of time, and their legend."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from heapq import heappop, heappush
from xml.etree.ElementTree import Element

from celery_dynbeat.flower.charts.plot import (
    add_clock_change_labels,
    add_now,
    add_now_arrow,
    add_plot,
    add_time_grid,
    add_time_labels,
)
from celery_dynbeat.flower.charts.scales import TimeScale
from celery_dynbeat.flower.charts.svg import (
    Tone,
    add,
    add_mark,
    checked_link,
    clean,
    percent,
    render,
    svg,
    tone_class,
    tone_of,
)

_TRACK_HEIGHT = 20
#: Room above the bars for the flags of failed runs.
_FLAG_HEIGHT = 6
#: The labels of clock changes, days and times, one line each.
_HEAD_HEIGHT = 52
#: A rectangle without a width is not drawn, nor is its stroke.
_MIN_WIDTH = 0.00002
#: Runs that overlap are drawn below each other, on at most this number of lanes.
_MAX_LANES = 4
_MEANINGS = {
    Tone.SUCCESS: "succeeded",
    Tone.FAILURE: "failed or lost",
    Tone.ACTIVE: "running or retrying",
    Tone.WAITING: "pending or sent",
    Tone.INACTIVE: "skipped, revoked or expired",
}
_WIDTH, _HEIGHT = 18, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineBar:
    """A run from ``start_at`` to ``end_at``, or until now if that is None."""

    start_at: datetime
    end_at: datetime | None
    status: str
    title: str
    href: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineTick:
    """A future fire time."""

    at: datetime
    title: str
    href: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRow:
    """The runs and fire times of an owner, a task, a tag or a schedule, in any order."""

    label: str
    href: str | None
    bars: Sequence[TimelineBar] = field(default=())
    ticks: Sequence[TimelineTick] = field(default=())


def timeline(
    rows: Sequence[TimelineRow],
    *,
    start_at: datetime,
    end_at: datetime,
    now: datetime,
    label: str,
) -> str:
    """Return the chart of ``rows`` in ``[start_at, end_at]``; labels show the zone of ``start_at``.

    The labels of the rows are tab stops. The arrow keys reach the marks of a row.
    """
    root = Element("div", {"class": "dynbeat-chart dynbeat-timeline"})
    root.set("role", "group")
    root.set("aria-label", clean(label))
    scale = TimeScale(start_at, end_at)
    _add_axis(root, scale, now)
    rows_list = add(root, "ul", class_="dynbeat-rows")
    for row in rows:
        _add_row(rows_list, row, scale, now)
    if not rows:
        add(rows_list, "li", "No runs and no fire times in this window", class_="dynbeat-no-rows")
    return render(root)


def _add_axis(root: Element, scale: TimeScale, now: datetime) -> None:
    """Append the labels, which stay on the screen, and the grid, which lies behind all rows."""
    # A reader of the screen gets the times from the titles of the marks.
    head = add(root, "div", class_="dynbeat-timeline-head", aria_hidden="true")
    labels = add(head, "svg", width="100%", height=_HEAD_HEIGHT)
    add_clock_change_labels(labels, scale, y=11)
    add_time_labels(labels, scale, times_y=_HEAD_HEIGHT - 9, days_y=_HEAD_HEIGHT - 25)
    add_now_arrow(labels, scale, now, y=_HEAD_HEIGHT)
    grid = svg("dynbeat-timeline-grid", aria_hidden="true", width="100%", height="100%")
    root.append(grid)
    add_time_grid(grid, scale, height="100%")
    add_now(grid, scale, now, height="100%")


def _add_row(rows_list: Element, row: TimelineRow, scale: TimeScale, now: datetime) -> None:
    item = add(rows_list, "li", class_="dynbeat-row")
    link = None if row.href is None else checked_link(row.href)
    tag = "span" if link is None else "a"
    add(item, tag, row.label, class_="dynbeat-row-label", href=link, title=row.label)
    shown = f"{row.label}: {len(row.bars)} runs, {len(row.ticks)} upcoming fire times"
    track = add_plot(item, label=shown, height=_TRACK_HEIGHT)
    track.set("class", "dynbeat-track")
    lanes = _lanes(row.bars, now)
    height = (_TRACK_HEIGHT - _FLAG_HEIGHT) / (max(lanes, default=0) + 1)
    for bar, lane in zip(row.bars, lanes, strict=True):
        _add_bar(track, bar, scale, now, y=_FLAG_HEIGHT + lane * height, height=height)
    for tick in row.ticks:
        _add_tick(track, tick, scale)


def _lanes(bars: Sequence[TimelineBar], now: datetime) -> list[int]:
    """Return the lane of each bar, which is the first free lane, or 0 if none is free."""
    lanes = [0] * len(bars)
    free = list(range(_MAX_LANES))
    taken: list[tuple[float, int]] = []
    for index in sorted(range(len(bars)), key=lambda index: bars[index].start_at.timestamp()):
        bar = bars[index]
        while taken and taken[0][0] <= bar.start_at.timestamp():
            heappush(free, heappop(taken)[1])
        if free:
            lanes[index] = heappop(free)
            heappush(taken, ((bar.end_at or now).timestamp(), lanes[index]))
    return lanes


def _add_bar(
    track: Element,
    bar: TimelineBar,
    scale: TimeScale,
    now: datetime,
    *,
    y: float,
    height: float,
) -> None:
    left, right = scale.clamped(bar.start_at), scale.clamped(bar.end_at or max(now, bar.start_at))
    tone = tone_of(bar.status)
    mark = add_mark(track, f"dynbeat-bar {tone_class(tone)}", title=bar.title, href=bar.href)
    add_run_shape(mark, tone, x=left, width=max(right - left, 0), y=y, height=height)


def add_run_shape(
    mark: Element, tone: Tone, *, x: float, width: float, y: float, height: float
) -> None:
    """Append the shape of a run: ``x`` and ``width`` are fractions, ``y`` and ``height`` pixels."""
    if tone is Tone.WAITING:
        add(mark, "circle", cx=percent(x), cy=y + height / 2, r=min(height, 8) / 2 - 0.5)
        return
    if tone is Tone.INACTIVE:
        y, height = y + height / 2 - height / 5, 2 * height / 5
    # The style sheet adds a stroke of one pixel on each side, so the minimum width is two pixels.
    add(
        mark,
        "rect",
        x=percent(x),
        y=y + 1,
        width=percent(max(width, _MIN_WIDTH)),
        height=max(height - 2, 0.5),
    )
    if tone is Tone.FAILURE:
        place = add(mark, "svg", x=percent(x), y=0, overflow="visible")
        add(place, "path", class_="dynbeat-flag", d=f"M-4 0h8l-4 {_FLAG_HEIGHT - 1}Z")


def _add_tick(track: Element, tick: TimelineTick, scale: TimeScale) -> None:
    mark = add_mark(track, "dynbeat-fire-time", title=tick.title, href=tick.href)
    add_tick_shape(mark, x=scale.clamped(tick.at))


def add_tick_shape(mark: Element, *, x: float) -> None:
    """Append the shape of an upcoming fire time at the fraction ``x`` of the width."""
    place = add(mark, "svg", x=percent(x), y=0, overflow="visible")
    height = _TRACK_HEIGHT - _FLAG_HEIGHT - 3
    add(place, "rect", x=-2, y=_FLAG_HEIGHT + 1.5, width=4, height=height, rx=1)


def timeline_legend() -> str:
    """Return a list of the shapes of a timeline with their meanings."""
    legend = Element("ul", {"class": "dynbeat-legend"})
    for tone, meaning in _MEANINGS.items():
        key = _add_item(legend, f"dynbeat-bar {tone_class(tone)}", meaning)
        x = 0.5 if tone is Tone.WAITING else 0.25
        add_run_shape(key, tone, x=x, width=0.5, y=6, height=_HEIGHT - 6)
    add_tick_shape(_add_item(legend, "dynbeat-fire-time", "planned"), x=0.5)
    return render(legend)


def _add_item(legend: Element, class_name: str, meaning: str) -> Element:
    item = add(legend, "li")
    drawing = svg("dynbeat-key-shape", aria_hidden="true", width=_WIDTH, height=_HEIGHT)
    item.append(drawing)
    add(item, "span", meaning)
    return add(drawing, "g", class_=class_name)
