"""A row of the page "Schedules"."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from celery_dynbeat.api.results import ScheduleInfo
from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.flower.pages.schedules import (
    LastRun,
    last_run,
    schedule_row,
    state_of,
)
from celery_dynbeat.insights.history import RecentRun
from celery_dynbeat.triggers import parse_trigger
from tests.support.chart_elements import parse

NOW = datetime(2026, 11, 23, 0, 0, tzinfo=UTC)
SEOUL = ZoneInfo("Asia/Seoul")
SITUATION = {"now": NOW, "dispatch_timeout": timedelta(seconds=30)}


def schedule(**values):
    fields = dict.fromkeys(ScheduleInfo.__slots__)
    trigger = parse_trigger("cron", "0 9 * * mon-fri", timezone="Asia/Seoul")
    fields |= {"owner": "user:1", "name": "digest", "enabled": True, "trigger": trigger}
    fields |= {"given_trigger": trigger, "next_run_at": NOW + timedelta(hours=1)}
    return ScheduleInfo(**{**fields, **values})


def run(status, *, minutes=0, **values):
    at = NOW - timedelta(minutes=minutes)
    fields = {
        "id": new_run_id(at),
        "status": status,
        "attempt": 0 if status == "skipped" else 1,
        "origin": "schedule",
        "fire_at": at,
        "fire_count": 1,
        "lag": timedelta(milliseconds=32),
        "queue_time": None,
        "duration": timedelta(seconds=2),
        "error": None,
    }
    return RecentRun(**{**fields, **values})


def row_of(info, runs=(), situation=SITUATION):
    return schedule_row(info, runs, **situation, zone=SEOUL, link="/run/{}".format)


def test_a_damaged_rule_has_a_row():
    row = row_of(schedule(trigger=None, given_trigger=None, error="x", next_run_at=None))

    assert (row.rule, row.text, row.state) == ("Damaged rule", "", "quarantined")


LATE = NOW - timedelta(seconds=31)


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ({}, "active"),
        ({"next_run_at": NOW - timedelta(seconds=30)}, "active"),
        ({"next_run_at": LATE}, "overdue"),
        ({"next_run_at": LATE, "failing_since": NOW}, "overdue"),
        ({"failing_since": NOW}, "failing"),
        ({"next_run_at": None, "is_held": True}, "held"),
        ({"enabled": False, "next_run_at": None, "is_held": True}, "paused"),
        ({"finished_at": NOW, "next_run_at": None, "is_held": True}, "finished"),
        ({"error": "x", "next_run_at": None, "is_held": True}, "quarantined"),
    ],
)
def test_the_state_knows_the_time_and_the_holds(values, state):
    assert state_of(schedule(**values), **SITUATION) == state


def test_the_last_run_is_the_newest_that_was_not_skipped():
    runs = [run("succeeded", minutes=9), run("failed", minutes=5), run("skipped")]

    assert last_run(runs) == LastRun(
        at=NOW - timedelta(minutes=5), status="failed", failures="", error=None
    )
    assert last_run([run("skipped")]) is None
    assert last_run([]) is None


def test_a_run_that_its_task_skipped_is_the_last_run_and_ends_no_series_of_failures():
    runs = [run("failed", minutes=9), run("failed", minutes=5), run("skipped", attempt=1)]

    last = last_run(runs)

    assert (last.at, last.status, last.failures) == (NOW, "skipped", "x2")


@pytest.mark.parametrize(
    ("statuses", "failures"),
    [
        ("succeeded failed", ""),
        ("succeeded failed lost", "x2"),
        ("failed succeeded", ""),
        ("succeeded failed skipped failed running", "x2"),
        ("failed " * 12, "x12"),
        ("failed " * 30, "x30+"),
        ("skipped " + "failed " * 29, "x29+"),
        ("succeeded " + "failed " * 29, "x29"),
    ],
)
def test_failures_in_a_row_are_counted(statuses, failures):
    assert last_run([run(status) for status in statuses.split()]).failures == failures


def test_a_bar_links_its_run_and_says_what_happened():
    failed = run("failed", error="Error: <b>\u202e\nmore", fire_count=3)

    [bar] = parse(row_of(schedule(), [failed]).strip).iter("a")

    assert bar.get("href") == f"/run/{failed.id}"
    assert bar[0].text == (
        "Mon 23 Nov 2026 09:00:00 +09, failed, lag 32 ms, duration 2 s, represents 3 fire times,"
        " Error: <b>\\u202e"
    )
