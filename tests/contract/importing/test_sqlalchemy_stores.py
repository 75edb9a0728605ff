"""The stores of sqlalchemy-celery-beat and celery-sqlalchemy-scheduler become schedules."""

from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat import Cron, Every, Once, Solar
from celery_dynbeat.importing.table_rows import (
    CELERY_SQLALCHEMY_SCHEDULER,
)
from celery_dynbeat.importing.tables import TableSource
from tests.support.applications import START, application
from tests.support.peers import write_store

NEW, OLD = "sqlalchemy-celery-beat", "celery-sqlalchemy-scheduler"
HOUR = timedelta(hours=1)
LAST_RUN = START - timedelta(minutes=3)
PLACE = {"event": "sunset", "latitude": -37.8136, "longitude": 144.9631}


def task(name, **fields):
    return {"name": name, "task": f"proj.{name}", **fields}


def ran(instant):
    return {"last_run_at": instant.isoformat(), "total_run_count": 3}


ROWS = [
    task("interval", interval={"every": 5, "period": "minutes"}, **ran(LAST_RUN)),
    task(
        "crontab",
        crontab={"hour": "9", "minute": "30", "day_of_week": "fri", "day_of_month": "13"}
        | {"month_of_year": "*", "timezone": "Asia/Seoul"},
    ),
    task("solar", solar=PLACE),
    task("paused", interval={"every": 2, "period": "days"}, enabled=False),
    task("payload", interval={"every": 1, "period": "hours"}, args="[1]", kwargs='{"a": 2}')
    | {"queue": "mail", "exchange": "e", "routing_key": "r", "priority": 3, "description": "d"},
    task("once", interval={"every": 90, "period": "seconds"}, one_off=True),
    task("ran", interval={"every": 90, "period": "seconds"}, one_off=True, total_run_count=1),
    task("expires", interval={"every": 1, "period": "minutes"})
    | {"expires": (START + HOUR).isoformat()},
    task("later", interval={"every": 1, "period": "minutes"})
    | {"start_time": (START + HOUR).isoformat()},
]
ONLY_NEW = [
    task("clocked", clocked={"clocked_time": (START + HOUR).isoformat()}, one_off=True),
    task("seconds", interval={"every": 1, "period": "minutes"})
    | {"expire_seconds": 30, "headers": '{"tenant": "t1"}'},
]


@pytest.mark.parametrize(("package", "rows"), [(NEW, ROWS + ONLY_NEW), (OLD, ROWS)], ids=[NEW, OLD])
def test_each_feature_of_a_store_is_imported(sqlite_url, imported, dynbeat, package, rows):
    write_store(package, rows, sqlite_url)
    mine = dynbeat.schedules.for_owner("")

    shown = imported(package, sqlite_url, "--apply")

    assert shown.pop("ran")["reason"] == "a one-off that has run"
    assert {each["outcome"] for each in shown.values()} == {"create"}
    interval = mine.get("interval")
    assert interval.given_trigger == Every(300)
    assert interval.next_run_at == LAST_RUN + timedelta(minutes=5)
    assert (interval.last_run_at, interval.run_count) == (LAST_RUN, 3)
    assert mine.get("crontab").trigger == Cron("30 9 13 * 5", timezone="Asia/Seoul", day_or=False)
    assert mine.get("solar").trigger == Solar("sunset", latitude=-37.8136, longitude=144.9631)
    assert mine.get("paused").paused_reason == f"disabled in {package}"
    payload = mine.get("payload")
    assert (payload.args, payload.kwargs, payload.description) == ([1], {"a": 2}, "d")
    options = {"queue": "mail", "exchange": "e", "routing_key": "r", "priority": 3}
    assert payload.options == options
    assert mine.get("once").max_runs == 1
    assert mine.get("expires").end_at == START + HOUR - timedelta(microseconds=1)
    assert mine.get("later").next_run_at == START + HOUR
    if package == NEW:
        assert mine.get("clocked").trigger == Once(START + HOUR)
        assert mine.get("seconds").expires_after == timedelta(seconds=30)
        assert mine.get("seconds").options == {"headers": {"tenant": "t1"}}
    assert "create" not in {
        each["outcome"] for each in imported(package, sqlite_url, "--apply").values()
    }


def test_the_scheduler_writes_naive_instants_in_the_zone_of_the_application(sqlite_url, clock):
    # As its beat does with the time zone Asia/Seoul.
    local = datetime(2026, 11, 21, 18, 0)  # noqa: DTZ001
    write_store(
        OLD, [task("a", interval={"every": 5, "period": "minutes"}, **ran(local))], sqlite_url
    )
    with application(sqlite_url, clock=clock) as made:
        made.app.conf.timezone = "Asia/Seoul"
        source = TableSource(
            sqlite_url, CELERY_SQLALCHEMY_SCHEDULER, context=made.context, schema=None, zone=None
        )

        (page,) = source.pages()

    assert page[0].converted.progress.last_run_at == datetime(2026, 11, 21, 9, tzinfo=UTC)
