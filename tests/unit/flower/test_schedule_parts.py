"""What the page of one schedule shows of its values."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from celery_dynbeat.api.results import ChangeInfo
from celery_dynbeat.flower.pages.schedule import (
    changed_fields,
    line_points,
)
from celery_dynbeat.insights.charts import TimesBucket

NOW = datetime(2026, 11, 22, 9, tzinfo=UTC)
SEOUL = ZoneInfo("Asia/Seoul")
SECOND = timedelta(seconds=1)


def bucket(day, lag):
    start = NOW + timedelta(days=day)
    return TimesBucket(
        start_at=start,
        end_at=start + timedelta(days=1),
        count=0 if lag is None else 3,
        lag_p50=lag,
        lag_max=lag,
        duration_p50=None,
        duration_max=None,
    )


def test_a_line_connects_the_times_with_runs():
    points = list(
        line_points(
            [bucket(0, SECOND), bucket(1, None), bucket(2, 2 * SECOND)], which="lag", zone=SEOUL
        )
    )

    assert [(point.start_at.isoformat(), point.p50) for point in points] == [
        ("2026-11-22T18:00:00+09:00", 1.0),
        ("2026-11-24T18:00:00+09:00", 2.0),
    ]
    assert points[0].title == "Sun 22 Nov 2026 18:00:00 +09: lag 1 s, at most 1 s, 3 runs"


def change(before, after):
    return ChangeInfo(
        id=1,
        changed_at=NOW,
        owner="o",
        name="n",
        action="update",
        actor="",
        reason="",
        before=before,
        after=after,
    )


def test_hidden_arguments_show_only_that_they_changed():
    edit = change({"args": ["hunter2"]}, {"kwargs": {"key": "hunter2"}})

    found = changed_fields(edit, hides_arguments=True)

    assert "hunter2" not in str(found)
    assert [(each.name, each.before, each.after) for each in found] == [
        ("args", "(hidden)", None),
        ("kwargs", None, "(hidden)"),
    ]
