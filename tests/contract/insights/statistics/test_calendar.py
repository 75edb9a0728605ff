"""The days of a schedule, compared with counts in Python over all of its rows."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from celery_dynbeat import Cron, Every, RRule
from celery_dynbeat.insights import charts
from celery_dynbeat.insights.charts import DAYS_AHEAD, calendar
from tests.support.applications import START, instants
from tests.support.random_history import add_runs
from tests.support.suites import each_database

MICROSECOND = timedelta(microseconds=1)
HOUR = timedelta(hours=1)
#: Zones whose clock goes back or forward in the weeks around a start; Apia skipped a day.
ZONES = {
    "America/New_York": START,
    "America/Santiago": datetime(2026, 9, 20, 3, tzinfo=UTC),
    "Asia/Seoul": START,
    "Australia/Lord_Howe": datetime(2026, 10, 10, 3, tzinfo=UTC),
    "Pacific/Apia": datetime(2012, 1, 10, 3, tzinfo=UTC),
}


def days_of(dynbeat, zone, *, name="digest", **given):
    return calendar(dynbeat.context, owner="user:42", name=name, zone=ZoneInfo(zone), **given)


def local_dates(zone, instants):
    return Counter(at.astimezone(ZoneInfo(zone)).date() for at in instants)


def numbers(days, name):
    return {day.day: getattr(day, name) for day in days if getattr(day, name)}


@pytest.mark.parametrize("zone", ZONES)
def test_each_run_counts_on_the_local_day_of_its_fire_time(dynbeat, mine, clock, zone):
    now = ZONES[zone]
    clock.move_to(now)
    schedule = mine.create("digest", task="t", trigger=Every(HOUR))
    other = mine.create("other", task="t", trigger=Every(HOUR))
    midnights = [day.start_at for day in days_of(dynbeat, zone, weeks=4)]
    around = {at + step for at in midnights for step in (-MICROSECOND, timedelta(0), MICROSECOND)}
    hourly = {now - n * 5 * HOUR for n in range(28 * 24 // 5)}
    runs = add_runs(dynbeat, schedule, sorted(at for at in around | hourly if at <= now))
    add_runs(dynbeat, other, sorted(hourly))

    days = days_of(dynbeat, zone, weeks=4)
    shown = [run for run in runs if days[0].start_at <= run.fire_at]

    totals = {day.day: day.total.count for day in days if day.total.count}
    assert totals == local_dates(zone, (run.fire_at for run in shown))
    failed = (run.fire_at for run in shown if run.status in {"failed", "lost"})
    assert numbers(days, "failed") == local_dates(zone, failed)
    skipped = (run.fire_at for run in shown if run.status == "skipped")
    assert numbers(days, "skipped") == local_dates(zone, skipped)
    assert all(day.total.exact for day in days)


TRIGGERS = {
    "daily": (Cron("30 9 * * *", timezone="America/New_York"), {}),
    "weekdays": (Cron("0 0,12 * * mon-fri", timezone="Asia/Seoul"), {}),
    "rule": (RRule("FREQ=WEEKLY;BYDAY=TU,TH;BYHOUR=23", timezone="UTC"), {}),
    "few": (Every(HOUR), {"max_runs": 30}),
    "ending": (Every(HOUR), {"end_at": START + timedelta(days=3)}),
    "late": (Every(HOUR), {"start_at": START + timedelta(days=9)}),
}


def test_planned_are_the_upcoming_fire_times_of_each_day(dynbeat, mine):
    for name, (trigger, fields) in TRIGGERS.items():
        mine.create(name, task="t", trigger=trigger, **fields)
        mine.skip(name, instants(mine.upcoming(name))[2])
        for zone in ("America/New_York", "Asia/Seoul"):
            days = days_of(dynbeat, zone, name=name)

            upcoming = [
                at for at in instants(mine.upcoming(name, count=1_000)) if at < days[-1].end_at
            ]
            assert numbers(days, "planned") == local_dates(zone, upcoming)
            assert all(day.planned_exact for day in days)


@pytest.mark.parametrize("trigger", [Every(60), Cron("*/2 8-20 * * mon-fri", timezone="UTC")])
def test_many_fire_times_are_exact_at_first_and_lower_bounds_later(dynbeat, mine, trigger):
    mine.create("digest", task="t", trigger=trigger)

    ahead = days_of(dynbeat, "Asia/Seoul")[-DAYS_AHEAD - 1 :]

    trigger = mine.get("digest").trigger
    for day in ahead:
        start = max(day.start_at, START + MICROSECOND)
        real = trigger.count_until(
            after=start - MICROSECOND, until=day.end_at - MICROSECOND, limit=10_000
        )
        assert day.planned <= real
        assert day.planned == real or not day.planned_exact
        assert bool(day.planned) == bool(real)
    exact = [day.planned_exact for day in ahead if day.planned]
    assert exact == sorted(exact, reverse=True)
    assert exact[0]
    assert not exact[-1]


def test_with_max_runs_the_days_after_the_bound_are_unknown(dynbeat, mine):
    mine.create("digest", task="t", trigger=Every(60), max_runs=1_500)

    ahead = days_of(dynbeat, "UTC")[-DAYS_AHEAD:]

    assert [day.planned for day in ahead[1:]] == [0] * (DAYS_AHEAD - 1)
    assert not any(day.planned_exact for day in ahead)


@each_database
def test_a_day_reads_a_bounded_number_of_runs(dynbeat, mine, monkeypatch):
    monkeypatch.setattr(charts, "MAX_RUNS_PER_DAY", 5)
    schedule = mine.create("digest", task="t", trigger=Every(HOUR))
    yesterday = START.replace(hour=12) - timedelta(days=1)
    add_runs(dynbeat, schedule, [yesterday + n * MICROSECOND for n in range(9)])
    add_runs(dynbeat, schedule, [yesterday - timedelta(days=1)])

    totals = [str(day.total) for day in days_of(dynbeat, "UTC") if day.total.count]

    assert totals == ["1", "5+"]
