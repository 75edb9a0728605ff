"""The calendar: the place and the appearance of a day."""

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat.common.infos import BoundedCount
from celery_dynbeat.flower.charts.heat_map import heat_map
from celery_dynbeat.insights.charts import CalendarDay
from tests.support.chart_elements import length, parse, with_class

#: A Wednesday.
FIRST = date(2026, 10, 7)


def cell(day=FIRST, total=0, failed=0, skipped=0, planned=0):
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return CalendarDay(
        day=day,
        start_at=start,
        end_at=start + timedelta(days=1),
        total=BoundedCount(count=total, exact=True),
        failed=failed,
        skipped=skipped,
        planned=planned,
        planned_exact=True,
    )


def calendar(cells, **options):
    marks = {"title": lambda each: f"{each.day}", "href": lambda each: f"/runs?day={each.day}"}
    return parse(heat_map(cells, label="Runs by day", **marks, **options))


@given(first=st.dates(date(2000, 1, 1), date(2040, 1, 1)), count=st.integers(1, 400))
def test_weeks_are_columns_and_weekdays_are_rows(first, count):
    cells = [cell(first + timedelta(days=n)) for n in range(count)]
    root = calendar(cells)
    monday = first - timedelta(days=first.weekday())
    columns = (cells[-1].day - monday).days // 7 + 1

    marks = with_class(root, "dynbeat-day")
    for each, mark in zip(cells, marks, strict=True):
        place = mark.find("svg")
        week = (each.day - monday).days // 7
        assert length(place, "x") == pytest.approx(week / columns, abs=1e-4)
        assert length(place, "y") == 18 + 16 * each.day.weekday()
        assert length(place, "x") + length(place, "width") <= 1.0001


@pytest.mark.parametrize(
    ("day", "appearance"),
    [
        (cell(), "empty"),
        (cell(planned=3), "planned"),
        (cell(total=10), "level-4"),
        (cell(total=10, failed=1), "level-4"),
        (cell(total=10, failed=6), "failed"),
        (cell(total=4, skipped=4), "skipped"),
        (cell(total=4, skipped=3), "level-4"),
    ],
)
def test_the_appearance_of_a_day(day, appearance):
    assert classes(day) == [appearance]


def classes(*cells):
    """Return the appearance of each day."""
    marks = with_class(calendar(list(cells)), "dynbeat-day")
    return [mark.get("class").split("dynbeat-day-")[1] for mark in marks]
