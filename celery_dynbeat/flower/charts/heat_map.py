"""The runs of a schedule by day: weeks as columns, weekdays as rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from xml.etree.ElementTree import Element

from celery_dynbeat.common.text import MONTHS, WEEKDAYS
from celery_dynbeat.flower.charts.svg import add, add_mark, percent, render, svg

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarCell:
    """A day. ``total`` counts all its runs, ``planned`` the fire times that have not passed."""

    day: date
    total: int
    failed: int
    skipped: int
    planned: int
    title: str
    href: str | None


def heat_map(cells: Sequence[CalendarCell], *, today: date | None = None, label: str) -> str:
    """Return the calendar of ``cells``, one for each day, oldest first.

    A planned day is hollow, and a day with a failure has a mark in its corner. ``today`` has a ring
    and is the only tab stop.
    """
    root = Element("div", {"class": "dynbeat-chart dynbeat-heat-map"})
    first = _monday(cells[0].day) if cells else None
    columns = _column(cells[-1].day, first) + 1 if first else 1
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
        _add_months(outer, cells, first=first, columns=columns)
    busiest = max((cell.total for cell in cells), default=0)
    for cell in cells:
        _add_cell(outer, cell, first=first, columns=columns, busiest=busiest, today=today)
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


def _add_months(
    outer: Element, cells: Sequence[CalendarCell], *, first: date, columns: int
) -> None:
    """Append the name of each month above the column that holds its first day."""
    axis = add(outer, "g", class_="dynbeat-axis")
    months = {(cell.day.year, cell.day.month): _column(cell.day, first) for cell in reversed(cells)}
    next_free = columns - _MIN_COLUMNS_OF_LABEL + 1
    for (_, month), column in months.items():
        if column <= next_free:
            add(axis, "text", MONTHS[month - 1][:3], x=percent(column / columns), y=11)
            next_free = column - _MIN_COLUMNS_OF_LABEL


def _level(total: int, busiest: int) -> int:
    """Return 0 for a day without a run, or else 1 to ``_LEVELS``."""
    if not total:
        return 0
    share = math.log1p(total) / math.log1p(busiest)
    return max(math.ceil(share * _LEVELS), 1)


def _kind(cell: CalendarCell, busiest: int) -> str:
    """Return the class of the appearance of a day."""
    if not cell.total:
        return "dynbeat-day-planned" if cell.planned else "dynbeat-day-empty"
    if 2 * cell.failed > cell.total:
        return "dynbeat-day-failed"
    if cell.skipped >= cell.total:
        return "dynbeat-day-skipped"
    return f"dynbeat-day-level-{_level(cell.total, busiest)}"


def _add_cell(
    outer: Element,
    cell: CalendarCell,
    *,
    first: date | None,
    columns: int,
    busiest: int,
    today: date | None,
) -> None:
    kind = _kind(cell, busiest)
    is_today = cell.day == today
    mark = add_mark(
        outer,
        f"dynbeat-day {kind}{' dynbeat-today' if is_today else ''}",
        title=cell.title,
        href=cell.href,
        is_tab_stop=is_today,
    )
    place = add(
        mark,
        "svg",
        x=percent(_column(cell.day, first) / columns),
        y=_TOP + cell.day.weekday() * _PITCH,
        width=percent(1 / columns),
        height=_PITCH,
    )
    add(place, "rect", class_="dynbeat-cell", x=1.5, y=1.5, width="82%", height=_SIZE, rx=2)
    if cell.failed:
        add(place, "path", class_="dynbeat-corner", d="M1.5 1.5h8l-8 8Z")
    if cell.total and cell.planned:
        add(place, "rect", class_="dynbeat-rest", x=1.5, y=_SIZE - 2, width="82%", height=3)
