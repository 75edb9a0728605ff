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


def days(count, **counts):
    return [cell(FIRST + timedelta(days=n), **counts) for n in range(count)]


def calendar(cells, **options):
    marks = {"title": lambda each: f"{each.day}", "href": lambda each: f"/runs?day={each.day}"}
    return parse(heat_map(cells, label="Runs by day", **marks, **options))


def classes(*cells):
    """Return the appearance of each day."""
    marks = with_class(calendar(list(cells)), "dynbeat-day")
    return [mark.get("class").split("dynbeat-day-")[1] for mark in marks]


def texts(root):
    return [text.text for text in root.iter("text")]


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


def test_rows_and_months_have_labels():
    assert texts(calendar(days(60))) == ["Mon", "Wed", "Fri", "Nov", "Oct"]


def test_labels_of_months_keep_their_distance():
    # October has one week here: its label would overlap that of November.
    first = date(2026, 10, 26)
    cells = [cell(first + timedelta(days=n)) for n in range(40)]

    assert texts(calendar(cells)) == ["Mon", "Wed", "Fri", "Nov"]


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


def test_the_calendar_of_failures_counts_failures_only():
    shown = [cell(total=9, failed=1, skipped=9), cell(total=9)]

    marks = with_class(calendar(shown, only_failed=True), "dynbeat-day")

    assert [mark.get("class").split("dynbeat-day-")[1] for mark in marks] == ["failed", "empty"]


def test_days_with_more_runs_are_darker():
    shown = classes(*(cell(FIRST + timedelta(days=n), total=10**n) for n in range(5)))

    assert shown == sorted(shown)
    assert (shown[0], shown[-1]) == ("level-1", "level-4")
    assert len(set(shown)) == 4


@pytest.mark.parametrize("failed", [1, 9])
def test_a_day_with_a_failure_has_a_mark_in_its_corner(failed):
    assert with_class(calendar([cell(total=9, failed=failed)]), "dynbeat-corner")
    assert not with_class(calendar([cell(total=9)]), "dynbeat-corner")


def test_a_day_with_past_and_planned_runs_shows_both():
    root = calendar([cell(total=3, planned=4)])

    assert with_class(root, "dynbeat-day-level-4")
    assert with_class(root, "dynbeat-rest")


def test_today_is_marked_and_the_only_tab_stop():
    root = calendar(days(10), today=FIRST + timedelta(days=3))

    [today] = with_class(root, "dynbeat-today")
    assert today.findtext("title") == "2026-10-10"
    assert [link for link in root.iter("a") if link.get("tabindex") is None] == [today]
