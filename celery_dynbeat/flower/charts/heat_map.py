"""The runs of a schedule by day: weeks as columns, weekdays as rows."""

import math
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from xml.etree.ElementTree import Element

from celery_dynbeat.common.text import MONTHS, WEEKDAYS
from celery_dynbeat.flower.charts.svg import add, add_mark, percent, render, svg
from celery_dynbeat.insights.charts import CalendarDay

_PITCH = 16
_SIZE = 13
_TOP = 18
_DAYS = len(WEEKDAYS)
#: Weekdays with a label: Monday, Wednesday, Friday.
_LABELLED_WEEKDAYS = (0, 2, 4)
#: Days with more runs are darker. The levels are logarithmic, relative to the busiest day.
_LEVELS = 4
#: Labels of months need about this number of columns.
_MIN_COLUMNS_OF_LABEL = 3


def heat_map(
    days: Sequence[CalendarDay],
    *,
    title: Callable[[CalendarDay], str],
    href: Callable[[CalendarDay], str | None],
    today: date | None = None,
    only_failed: bool = False,
    label: str,
) -> str:
    """Return the calendar of ``days``, oldest first, with the title and the link of each.

    A planned day is hollow, and a day with a failure has a mark in its corner. ``today`` has a ring
    and is the only tab stop. With ``only_failed``, only failed runs count.
    """
    root = Element("div", {"class": "dynbeat-chart dynbeat-heat-map"})
    first = _monday(days[0].day) if days else None
    columns = _column(days[-1].day, first) + 1 if first else 1
    outer = svg(
        "dynbeat-calendar",
        role="group",
        aria_label=label,
        width=columns * _PITCH,
        height=_TOP + _DAYS * _PITCH,
    )
    root.append(outer)
    _add_weekdays(outer)
    if first:
        _add_months(outer, days, first=first, columns=columns)
    totals = [each.failed if only_failed else each.total.count for each in days]
    busiest = max(totals, default=0)
    for each, total in zip(days, totals, strict=True):
        is_today = each.day == today
        kind = f"{_kind(each, total, busiest)}{' dynbeat-today' if is_today else ''}"
        mark = add_mark(
            outer,
            f"dynbeat-day {kind}",
            title=title(each),
            href=href(each),
            is_tab_stop=is_today,
        )
        place = add(
            mark,
            "svg",
            x=percent(_column(each.day, first) / columns),
            y=_TOP + each.day.weekday() * _PITCH,
            width=percent(1 / columns),
            height=_PITCH,
        )
        add(place, "rect", class_="dynbeat-cell", x=1.5, y=1.5, width="82%", height=_SIZE, rx=2)
        if each.failed:
            add(place, "path", class_="dynbeat-corner", d="M1.5 1.5h8l-8 8Z")
        if total and each.planned:
            add(place, "rect", class_="dynbeat-rest", x=1.5, y=_SIZE - 2, width="82%", height=3)
    return render(root)


def _monday(day: date) -> date:
    return day - timedelta(days=day.weekday())


def _column(day: date, first: date | None) -> int:
    return (_monday(day) - first).days // _DAYS if first else 0


def _add_weekdays(outer: Element) -> None:
    axis = add(outer, "g", class_="dynbeat-axis")
    for weekday in _LABELLED_WEEKDAYS:
        y = _TOP + weekday * _PITCH + _SIZE - 2
        add(axis, "text", WEEKDAYS[weekday][:3], x=-8, y=y, text_anchor="end")


def _add_months(outer: Element, days: Sequence[CalendarDay], *, first: date, columns: int) -> None:
    """Append the name of each month above the column that holds its first day."""
    axis = add(outer, "g", class_="dynbeat-axis")
    months = {(each.day.year, each.day.month): _column(each.day, first) for each in reversed(days)}
    next_free = columns - _MIN_COLUMNS_OF_LABEL + 1
    for (_, month), column in months.items():
        if column <= next_free:
            add(axis, "text", MONTHS[month - 1][:3], x=percent(column / columns), y=11)
            next_free = column - _MIN_COLUMNS_OF_LABEL


def _kind(day: CalendarDay, total: int, busiest: int) -> str:
    """Return the class of the appearance of a day, of which ``total`` runs count."""
    if not total:
        return "dynbeat-day-planned" if day.planned else "dynbeat-day-empty"
    if 2 * day.failed > total:
        return "dynbeat-day-failed"
    if day.skipped >= total:
        return "dynbeat-day-skipped"
    share = math.log1p(total) / math.log1p(busiest)
    return f"dynbeat-day-level-{max(math.ceil(share * _LEVELS), 1)}"
