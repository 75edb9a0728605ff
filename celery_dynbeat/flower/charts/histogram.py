"""Fires over time: past ones solid, failed ones hatched, future ones hollow."""

from collections.abc import Callable, Sequence
from datetime import datetime
from xml.etree.ElementTree import Element
from zlib import crc32

from celery_dynbeat.flower.charts.plot import add_axes, add_now, add_now_arrow
from celery_dynbeat.flower.charts.scales import LinearScale, TimeScale, count_ticks, format_count
from celery_dynbeat.flower.charts.svg import add, add_mark, percent, render
from celery_dynbeat.insights.timeline import Bin

_HEIGHT = 200
#: The least height of a part that counts at least one fire.
_MIN_HEIGHT = 2


def histogram(
    bins: Sequence[Bin],
    *,
    title: Callable[[Bin], str],
    href: Callable[[Bin], str | None],
    start_at: datetime,
    end_at: datetime,
    now: datetime | None = None,
    label: str,
) -> str:
    """Return the chart of ``bins`` in ``[start_at, end_at]``, with the title and link of each.

    Labels show the time zone of ``start_at``. ``now`` is a line.
    """
    root = Element("div", {"class": "dynbeat-chart dynbeat-histogram"})
    scale = TimeScale(start_at, end_at)
    ticks = count_ticks(max((each.past + each.planned for each in bins), default=0))
    values = LinearScale(0, ticks[-1])
    plot = add_axes(root, scale, values, ticks, height=_HEIGHT, text=format_count, label=label)
    hatch = _add_hatch(plot, label)
    shown = [each for each in bins if each.past or each.planned]
    for each in shown:
        is_last = each is shown[-1]
        mark = add_mark(
            plot, "dynbeat-bin", title=title(each), href=href(each), is_tab_stop=is_last
        )
        _add_bin(mark, each, scale, values, hatch=hatch)
    add_now(plot, scale, now, height=_HEIGHT)
    add_now_arrow(plot, scale, now, y=0)
    return render(root)


def _add_hatch(plot: Element, label: str) -> str:
    """Append the pattern of failed fires and return the reference to it."""
    # Ids belong to the whole page. Charts with one label share an identical pattern.
    name = f"dynbeat-hatch-{crc32(label.encode(errors='replace')):x}"
    pattern = add(
        add(plot, "defs"),
        "pattern",
        id=name,
        width=5,
        height=5,
        patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
    )
    add(pattern, "rect", class_="dynbeat-hatch-ground", width=5, height=5)
    add(pattern, "rect", class_="dynbeat-hatch-stripe", width=2, height=5)
    return f"url(#{name})"


def _add_bin(
    mark: Element, each: Bin, scale: TimeScale, values: LinearScale, *, hatch: str
) -> None:
    left, right = scale.clamped(each.start_at), scale.clamped(each.end_at)
    x, width = percent(left), percent(max(right - left, 0))
    add(mark, "rect", class_="dynbeat-hit", x=x, y=0, width=width, height=_HEIGHT)
    # The gap between bars is a share of the bar, because there may be hundreds of bars.
    x, width = percent(left + (right - left) * 0.08), percent(max(right - left, 0) * 0.84)
    bottom = float(_HEIGHT)
    parts = (
        (each.failed, "dynbeat-bar-failed", hatch),
        (each.past - each.failed, "dynbeat-bar-past", None),
        (each.planned, "dynbeat-bar-planned", None),
    )
    for count, class_name, fill in parts:
        if count <= 0:
            continue
        height = max(values.position(count) * _HEIGHT, _MIN_HEIGHT)
        top = max(bottom - height, 0)
        height = bottom - top
        add(mark, "rect", class_=class_name, fill=fill, x=x, y=top, width=width, height=height)
        if class_name == "dynbeat-bar-planned":
            add(mark, "rect", class_="dynbeat-bar-cap", x=x, y=top, width=width, height=1.5)
        bottom = top
