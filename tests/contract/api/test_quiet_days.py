"""Quiet days: the dates of a calendar on which no run of an owner, or of anybody, is sent."""

from datetime import UTC, date, datetime, timedelta

import pytest
from celery.schedules import crontab

from celery_dynbeat import (
    ConflictError,
    Cron,
    InvalidTriggerError,
    Once,
)
from celery_dynbeat.beat import config_sync
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import START
from tests.support.suites import each_database

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
NAME, NIGHT = "holidays", ["22:00-07:00"]
#: START is 21 November 2026, a Saturday, at 09:00 UTC.
SATURDAY, SUNDAY, MONDAY, TUESDAY = (date(2026, 11, day) for day in (21, 22, 23, 24))
NEVER = date(2030, 1, 1)


def at(day, hour=0, minute=0):
    return datetime(day.year, day.month, day.day, hour, minute, tzinfo=UTC)


@pytest.fixture
def put(dynbeat):
    def put(*days):
        return dynbeat.calendars.upsert(NAME, dates=[NEVER, *days])

    put()
    return put


def linked(dynbeat, name=NAME):
    return dynbeat.calendars.get(name).schedules.count


def test_an_edit_of_the_calendar_plans_a_future_fire_time_again(put, dynbeat, mine, clock, beat):
    mine.set_quiet_hours(calendar=NAME)
    made = mine.create("n", task="t", trigger=Cron("0 12 * * *"))
    clock.advance(MINUTE)

    changed = put(SATURDAY)
    assert changed.waiting_schedules.count == 1
    beat.run_until_idle()
    assert mine.get("n").next_run_at == at(SUNDAY)
    assert dynbeat.calendars.get(NAME).in_force_at == clock.now()
    put()
    beat.run_until_idle()
    assert (mine.get("n").next_run_at, mine.get("n").version) == (made.next_run_at, made.version)


def test_a_fire_time_waits_only_for_the_present_quiet_days(put, mine, clock, beat):
    put(SATURDAY)
    mine.set_quiet_hours(calendar=NAME)
    mine.create("n", task="t", trigger=Once(START + HOUR))
    mine.create("other", task="t", trigger=Once(START + HOUR), overlap="skip")
    clock.advance(2 * HOUR)
    beat.run_until_idle()
    assert (mine.get("n").next_run_at, beat.publisher.sent) == (at(SUNDAY), [])
    put(SATURDAY, SUNDAY)
    beat.run_until_idle()
    assert mine.get("n").next_run_at == at(MONDAY)

    mine.hold(reason="r")
    clock.move_to(at(MONDAY))
    beat.run_until_idle()
    put(SATURDAY, SUNDAY, MONDAY)
    beat.run_until_idle()
    mine.release()
    beat.run_until_idle()
    assert (mine.get("n").next_run_at, beat.publisher.sent) == (at(TUESDAY), [])

    put()
    beat.run_until_idle()
    beat.run_until_idle()
    assert {run.fire_at for run in beat.publisher.sent} == {START + HOUR}
    assert len(beat.publisher.sent) == 2


@pytest.mark.usefixtures("put")
@each_database
def test_each_change_links_the_schedules_with_the_calendar(dynbeat, mine):
    dynbeat.calendars.upsert("other", dates=[NEVER])
    daily = Cron("0 12 * * *")
    mine.create("before", task="t", trigger=daily.excluding(calendar="other"))
    assert mine.set_quiet_hours(NIGHT, calendar=NAME) == 1
    mine.create("after", task="t", trigger=daily)
    mine.upsert("put", task="t", trigger=daily)
    mine.create_many([{"name": f"n{n}", "task": "t", "trigger": daily} for n in range(2)])
    assert (linked(dynbeat), linked(dynbeat, "other")) == (5, 1)

    mine.rename("after", "renamed")
    mine.update("renamed", trigger=daily.excluding(calendar="other"))
    mine.update("before", trigger=daily)
    mine.pause("before")
    mine.resume("before")
    mine.set_timezone("Asia/Seoul")
    assert (linked(dynbeat), linked(dynbeat, "other")) == (5, 1)

    mine.set_quiet_hours(calendar="other")
    assert (linked(dynbeat), linked(dynbeat, "other")) == (0, 5)
    mine.set_quiet_hours(NIGHT)
    assert (linked(dynbeat), linked(dynbeat, "other")) == (0, 1)


@pytest.mark.usefixtures("put")
def test_a_calendar_in_use_is_not_deleted(dynbeat, mine):
    mine.set_quiet_hours(calendar=NAME)
    with pytest.raises(ConflictError, match="quiet hours of 'user:42'"):
        dynbeat.calendars.delete(NAME)
    mine.create("n", task="t", trigger=Cron("0 12 * * *"))
    with pytest.raises(ConflictError, match="1 schedules"):
        dynbeat.calendars.delete(NAME)

    dynbeat.schedules.delete_owner("user:42")
    dynbeat.calendars.delete(NAME)


def test_the_setting_applies_to_everybody(put, limited, clock):
    put(SUNDAY)
    dynbeat = limited(quiet_hours={"windows": NIGHT, "calendar": NAME})
    entry = {"task": "t", "schedule": crontab(hour=12)}
    dynbeat.app.conf.beat_schedule = {"own": entry}
    dynbeat.calendars.upsert("other", dates=[MONDAY])
    mine, other = (dynbeat.schedules.for_owner(name) for name in ("user:1", "user:2"))
    other.set_quiet_hours(["12:00-13:00"], calendar="other")
    for calls in (mine, other):
        calls.create("n", task="t", trigger=Cron("30 12,23 * * *"))
    beat = ManualBeat(dynbeat)
    config_sync.sync(dynbeat.context)

    # With celery.backend_cleanup.
    assert (linked(dynbeat), linked(dynbeat, "other")) == (3, 1)
    assert mine.get("n").next_run_at == at(SATURDAY, 12, 30)
    assert other.get("n").next_run_at == at(SATURDAY, 13)
    clock.move_to(at(SATURDAY, 13))
    beat.run_until_idle()
    assert mine.get("n").next_run_at == at(MONDAY, 7)
    assert other.get("n").next_run_at == at(SUNDAY, 7)
    assert [(each.owner, str(each)) for each in other.quiet_hours()] == [
        (None, "22:00-07:00, the days of holidays"),
        ("user:2", "12:00-13:00, the days of other"),
    ]
    other.clear_quiet_hours()
    for owner in ("user:1", "user:2", ""):
        dynbeat.schedules.delete_owner(owner)
    with pytest.raises(ConflictError, match="dynbeat_quiet_hours"):
        dynbeat.calendars.delete(NAME)


def test_a_setting_with_an_unknown_calendar_refuses_new_schedules(limited):
    dynbeat = limited(quiet_hours={"calendar": "nothing"})
    mine = dynbeat.schedules.for_owner("user:1")

    for call in (mine.create, mine.upsert):
        with pytest.raises(InvalidTriggerError, match="there is no calendar"):
            call("n", task="t", trigger=Cron("0 12 * * *"))
