"""``dynbeat replan`` moves planned fire times after a release of the tz database."""

from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from celery_dynbeat import Cron, Every, Once, store
from celery_dynbeat.cli import maintenance as command_module
from celery_dynbeat.common.settings import tz_release
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.health.checks import evaluate
from celery_dynbeat.health.probes import collect_health
from tests.support.applications import START, execute
from tests.support.suites import each_database

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
BERLIN = "Europe/Berlin"
#: When schedules that were planned with an earlier release would fire.
WRONG = START + 30 * HOUR


@pytest.fixture(autouse=True)
def named(dynbeat):
    """Give the tables the row that a beat writes when it starts."""
    with Session(dynbeat.context.database.engine) as session, session.begin():
        store.record_application(session, name="contract", now=START)
        store.record_tz_release(session, "2000a")


def release_of(dynbeat):
    return dynbeat.context.database.read(store.planned_tz_release)


def plan_at_with_earlier_release(dynbeat, at, where="1 = 1"):
    sql = f"UPDATE dynbeat_schedule SET next_fire_at = :at, next_run_at = :at WHERE {where}"
    execute(dynbeat, sql, at=at)


def plan_with_earlier_release(dynbeat, where="1 = 1"):
    plan_at_with_earlier_release(dynbeat, WRONG, where)


def make_zoned(mine, number):
    return [
        mine.create(f"n{each}", task="t", trigger=Cron("0 9 * * *", timezone=BERLIN))
        for each in range(number)
    ]


@each_database
def test_only_schedules_whose_next_fire_time_moves_change(dynbeat, mine, as_json):
    made = {
        "moves": mine.create("moves", task="t", trigger=Cron("0 9 * * *", timezone=BERLIN)),
        "same": mine.create("same", task="t", trigger=Cron("0 8 * * *", timezone=BERLIN)),
        "paused": mine.create("paused", task="t", trigger=Cron("0 8 * * *", timezone=BERLIN)),
        "once": mine.create("once", task="t", trigger=Once(START + 8 * HOUR)),
        "every": mine.create("every", task="t", trigger=Every(HOUR, anchor=START)),
        "utc": mine.create("utc", task="t", trigger=Cron("0 20 * * *")),
    }
    mine.pause("paused")
    plan_with_earlier_release(dynbeat, "name IN ('moves', 'utc')")

    assert as_json("replan") == [{"ok": True, "changed": 1, "zone": None, "release": tz_release()}]

    rows = {row.name: row for row in mine.list()}
    assert rows["moves"].next_run_at == made["moves"].next_run_at
    assert rows["same"].next_run_at == made["same"].next_run_at
    assert rows["once"].next_run_at == made["once"].next_run_at
    assert rows["paused"].next_run_at is None
    # UTC has no clock changes.
    assert rows["utc"].next_run_at == WRONG
    assert release_of(dynbeat) == tz_release()
    # A second command changes nothing.
    assert as_json("replan")[0]["changed"] == 0


def test_a_zone_selects_the_schedules_that_depend_on_it(dynbeat, mine, as_json):
    in_berlin = Cron("0 9 * * *", timezone=BERLIN)
    made = mine.create("zone", task="t", trigger=in_berlin)
    mine.create("other", task="t", trigger=Cron("0 9 * * *", timezone="Asia/Seoul"))
    dynbeat.calendars.upsert("c", dates=[(START + 99 * HOUR).date()])
    moved = in_berlin.on_business_day("next", calendar="c", timezone="UTC")
    part = mine.create("part", task="t", trigger=moved)
    plan_with_earlier_release(dynbeat)

    [result] = as_json("replan", "--zone", BERLIN)

    assert (result["changed"], result["zone"]) == (2, BERLIN)
    rows = {row.name: row.next_run_at for row in mine.list()}
    assert rows == {"zone": made.next_run_at, "part": part.next_run_at, "other": WRONG}
    # Other zones may still wait.
    assert release_of(dynbeat) == "2000a"


def test_a_fire_time_that_skip_took_out_stays_out(dynbeat, mine, shown):
    (made,) = make_zoned(mine, 1)
    mine.skip("n0", made.next_run_at)
    plan_with_earlier_release(dynbeat)

    shown("replan")

    assert mine.get("n0").next_run_at == made.next_run_at + 24 * HOUR


@pytest.mark.parametrize(("catch_up", "status"), [("latest", "sent"), ("none", "skipped")])
def test_a_fire_time_that_moves_into_the_past_is_sent_or_recorded(
    dynbeat, mine, clock, beat, shown, catch_up, status
):
    trigger = Cron("30 9 * * *", timezone=BERLIN)
    mine.create("n", task="t", trigger=trigger, catch_up=catch_up)
    # It is at 08:30 UTC with the new release, before the command.
    plan_at_with_earlier_release(dynbeat, START + 30 * MINUTE)

    shown("replan")
    clock.advance(HOUR)
    beat.run_until_idle()

    [run] = mine.runs()
    assert (run.status, run.fire_at) == (status, START - 30 * MINUTE)
    assert mine.get("n").next_run_at == START + 23 * HOUR + 30 * MINUTE


def test_a_fire_time_that_moves_to_a_later_time_is_not_sent_twice_on_a_day(
    dynbeat, mine, clock, beat, shown
):
    mine.create("n", task="t", trigger=Cron("0 11 * * *", timezone=BERLIN))
    # 11:00 was at 09:01 UTC, and is at 10:00 UTC with the new release.
    plan_at_with_earlier_release(dynbeat, START + MINUTE)
    clock.advance(MINUTE)
    beat.run_until_idle()
    plan_at_with_earlier_release(dynbeat, START + MINUTE + 24 * HOUR)

    shown("replan")
    clock.advance(2 * HOUR)
    beat.run_until_idle()

    assert [run.fire_at for run in mine.runs()] == [START + MINUTE]
    assert mine.get("n").next_run_at == START + 25 * HOUR


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_locked_schedule_delays_no_other_and_is_named(dynbeat, mine, refused, shown, monkeypatch):
    monkeypatch.setattr(command_module, "_PAUSE", 0)
    made = make_zoned(mine, 5)
    plan_with_earlier_release(dynbeat)

    with Session(dynbeat.context.database.engine) as holder:
        holder.execute(select(Schedule).where(Schedule.name == "n1").with_for_update()).all()
        status, error = refused("replan")
        assert (status, "locked 1 more: repeat the command" in error) == (1, True)
        assert {row.name for row in mine.list() if row.next_run_at == WRONG} == {"n1"}
        assert release_of(dynbeat) == "2000a"

    shown("replan")
    assert {row.next_run_at for row in mine.list()} == {made[0].next_run_at}
    assert release_of(dynbeat) == tz_release()


def test_status_warns_of_another_release_until_the_schedules_are_planned(dynbeat, shown):
    def warning():
        found = evaluate(collect_health(dynbeat.app)).warnings
        return next((each for each in found if each.code == "tz_release_differs"), None)

    assert "were planned with release 2000a" in warning().text
    assert "`dynbeat replan`" in warning().hint
    shown("replan")
    assert warning() is None
