"""The last runs of a schedule as one bar per run."""

import math
from collections.abc import Callable, Sequence
from xml.sax.saxutils import escape

from celery_dynbeat.flower.charts.svg import (
    Tone,
    checked_link,
    clean,
    number,
    render,
    svg,
    tone_class,
    tone_of,
)
from celery_dynbeat.insights.history import RecentRun

_PITCH = 5
_WIDTH = 4
_HEIGHT = 20
_MIN_HEIGHT = 3
#: A failed bar is an exclamation mark. These are its dot and the gap above the dot.
_DOT = 3
_GAP = 1.5
_SHORTEST_SECONDS = 0.001
#: The characters that ElementTree escapes only in attributes.
_IN_ATTRIBUTES = {'"': "&quot;", "\r": "&#13;", "\n": "&#10;", "\t": "&#09;"}


def run_strip(
    runs: Sequence[RecentRun],
    *,
    title: Callable[[RecentRun], str],
    href: Callable[[RecentRun], str | None],
    slots: int = 30,
    label: str,
) -> str:
    """Return the newest ``slots`` of ``runs``, which are oldest first; the newest is at the right.

    The height is the logarithm of the duration: shorter than a tenth of the shortest is zero, ten
    times the shortest, or the longest if that is more, is full. Noise therefore does not look like
    a change.
    """
    shown = runs[-slots:]
    root = svg(
        "dynbeat-strip",
        role="group",
        aria_label=label,
        viewBox=f"0 0 {slots * _PITCH} {_HEIGHT}",
        width=slots * _PITCH,
        height=_HEIGHT,
    )
    first = slots - len(shown)
    heights = _heights(
        [None if run.duration is None else run.duration.total_seconds() for run in shown]
    )
    marks = [
        _mark(
            tone_of(run.status),
            title=title(run),
            href=href(run),
            slot=slot,
            height=height,
            is_tab_stop=slot == slots - 1,
        )
        for slot, (run, height) in enumerate(zip(shown, heights, strict=True), start=first)
    ]
    # A page has up to 3,000 marks. Writing them as text takes a third of the time of creating
    # elements.
    head, _, _ = render(root).rpartition(" />")
    inner = "".join([*map(_empty_slot, range(first)), *marks])
    return f"{head}>{inner}</svg>" if inner else f"{head} />"


def _heights(durations: Sequence[float | None]) -> list[float]:
    """Return the height of each bar in pixels."""
    known = [max(seconds, _SHORTEST_SECONDS) for seconds in durations if seconds is not None]
    if not known:
        return [_MIN_HEIGHT] * len(durations)
    low, high = min(known) / 10, max(*known, 10 * min(known))
    decades = math.log10(high / low)
    return [
        _MIN_HEIGHT
        if seconds is None
        else _MIN_HEIGHT
        + (_HEIGHT - _MIN_HEIGHT) * math.log10(max(seconds, _SHORTEST_SECONDS) / low) / decades
        for seconds in durations
    ]


def _empty_slot(slot: int) -> str:
    x = slot * _PITCH + 0.5
    return _rect(x, _HEIGHT - 1, _WIDTH, 1, class_name="dynbeat-empty")


def _mark(
    tone: Tone, *, title: str, href: str | None, slot: int, height: float, is_tab_stop: bool
) -> str:
    # The area for the pointer is the whole slot: bars are small.
    hit = _rect(slot * _PITCH, 0, _PITCH, _HEIGHT, class_name="dynbeat-hit")
    shape = _shape(tone, x=slot * _PITCH + 0.5, height=height)
    inner = f"<title>{escape(clean(title))}</title>{hit}{shape}"
    name = f'class="dynbeat-mark {tone_class(tone)}"'
    if href is None:
        return f"<g {name}>{inner}</g>"
    link = escape(clean(checked_link(href)), _IN_ATTRIBUTES)
    index = "" if is_tab_stop else ' tabindex="-1"'
    return f'<a {name} href="{link}"{index}>{inner}</a>'


def _shape(tone: Tone, *, x: float, height: float) -> str:
    if tone is Tone.FAILURE:
        return _exclamation_mark(x=x, height=height)
    if tone in {Tone.WAITING, Tone.ACTIVE}:
        # The stroke is drawn on the edge.
        return _rect(x + 0.5, _HEIGHT - height + 0.5, _WIDTH - 1, height - 1)
    if tone is Tone.INACTIVE:
        return _rect(x, _HEIGHT - _MIN_HEIGHT, _WIDTH, _MIN_HEIGHT)
    return _rect(x, _HEIGHT - height, _WIDTH, height, radius=1)


def _exclamation_mark(*, x: float, height: float) -> str:
    top = min(_HEIGHT - height, _HEIGHT - _DOT - _GAP - _MIN_HEIGHT)
    dot = _rect(x, _HEIGHT - _DOT, _WIDTH, _DOT)
    return dot + _rect(x, top, _WIDTH, _HEIGHT - _DOT - _GAP - top)


def _rect(
    x: float, y: float, width: float, height: float, *, class_name: str = "", radius: int = 0
) -> str:
    name = f'class="{class_name}" ' if class_name else ""
    round_ = f' rx="{radius}"' if radius else ""
    return (
        f'<rect {name}x="{number(x)}" y="{number(y)}" width="{number(width)}"'
        f' height="{number(height)}"{round_} />'
    )
