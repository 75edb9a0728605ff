"""The time zone of an owner: triggers without a zone follow it."""

import threading
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from celery_dynbeat import (
    Cron,
    Every,
    Once,
    RRule,
)
from celery_dynbeat.api.audit import acting
from tests.support.applications import START, execute
from tests.support.lock_waits import wait_for_lock_wait
from tests.support.suites import each_database

HOUR = timedelta(hours=1)
NINE = Cron("0 9 * * *")
SEOUL, BERLIN = "Asia/Seoul", "Europe/Berlin"


def local(schedule, zone):
    """Return the hours of the clock of ``zone`` at the next run."""
    return schedule.next_run_at.astimezone(ZoneInfo(zone)).hour


def test_a_new_trigger_without_a_zone_gets_the_zone_of_its_owner(dynbeat, mine):
    mine.set_timezone(SEOUL)

    made = [
        mine.create("create", task="t", trigger=NINE),
        mine.upsert("upsert", task="t", trigger="0 9 * * *"),
        mine.update("create", trigger=Cron("30 9 * * *")),
    ]
    dynbeat.schedules.create_many(
        [
            {"owner": "user:42", "name": "many", "task": "t", "trigger": NINE},
            {"owner": "user:43", "name": "many", "task": "t", "trigger": NINE},
        ]
    )

    assert mine.timezone() == SEOUL
    for schedule in (*made, mine.get("many")):
        assert (schedule.timezone, schedule.inherits_timezone) == (SEOUL, True)
        assert local(schedule, SEOUL) == 9
    assert dynbeat.schedules.for_owner("user:43").get("many").timezone == "UTC"


def test_a_change_moves_the_schedules_that_follow_the_zone_and_no_others(mine):
    for name, trigger in {
        "cron": NINE,
        "days": Every(days=1, anchor=datetime(2026, 1, 5, 9, tzinfo=UTC)),
        "rrule": RRule("DTSTART:20260105T090000\nRRULE:FREQ=DAILY"),
        "named": Cron("0 9 * * *", timezone=BERLIN),
        "interval": Every(3600),
        "once": Once(START + HOUR),
    }.items():
        mine.create(name, task="t", trigger=trigger)
    before = {schedule.name: schedule for schedule in mine.list()}

    assert mine.set_timezone(SEOUL) == 3

    after = {schedule.name: schedule for schedule in mine.list()}
    for name in ("cron", "rrule"):
        assert (after[name].timezone, local(after[name], SEOUL)) == (SEOUL, 9)
    for name in ("cron", "rrule", "days"):
        assert after[name].version == before[name].version + 1
        assert after[name].trigger.timezone == SEOUL
    for name in ("named", "interval", "once"):
        assert after[name] == before[name]


def test_a_change_sends_the_fire_time_that_is_due_and_none_retroactively(mine, beat, clock, sent):
    mine.create("a", task="t", trigger=Cron("0 10 * * *"))
    clock.advance(HOUR + timedelta(minutes=5))

    # 10:00 in Berlin has passed.
    mine.set_timezone(BERLIN)
    beat.tick()

    assert [run.fire_at for run in sent] == [START + HOUR]
    assert mine.get("a").next_run_at == datetime(2026, 11, 22, 9, tzinfo=UTC)


def test_a_paused_schedule_stays_paused_and_resumes_in_the_new_zone(mine, clock):
    mine.create("a", task="t", trigger=NINE, enabled=False)
    clock.advance(timedelta(days=1, hours=1))

    assert mine.set_timezone(SEOUL) == 1

    paused = mine.get("a")
    assert (paused.enabled, paused.next_run_at, paused.finished_at) == (False, None, None)
    assert [run.fire_count for run in mine.runs("a")] == [1]
    assert local(mine.resume("a"), SEOUL) == 9


def test_damaged_rows_do_not_prevent_the_change(dynbeat, mine):
    for name in ("good", "trigger", "quarantined"):
        mine.create(name, task="t", trigger=NINE)
    execute(dynbeat, "UPDATE dynbeat_schedule SET trigger_spec = '?' WHERE name = 'trigger'")
    execute(
        dynbeat,
        "UPDATE dynbeat_schedule SET error = 'e', next_run_at = NULL WHERE name = 'quarantined'",
    )

    assert mine.set_timezone(SEOUL) == 3

    assert local(mine.get("good"), SEOUL) == 9
    assert "expression" in mine.get("trigger").error
    quarantined = mine.get("quarantined")
    assert (quarantined.error, quarantined.next_run_at) == ("e", None)
    assert {schedule.timezone for schedule in mine.list()} == {SEOUL}
    assert local(mine.resume("quarantined"), SEOUL) == 9


@each_database
def test_the_change_waits_for_a_create_in_the_old_zone_and_moves_its_schedule(dynbeat, mine):
    mine.create("first", task="t", trigger=NINE)
    changed = []
    other = threading.Thread(target=lambda: changed.append(mine.set_timezone(SEOUL)))

    with Session(dynbeat.context.database.engine) as holder:
        mine.bound(session=holder).create("second", task="t", trigger=NINE)
        other.start()
        other.join(1)
        assert other.is_alive()
        holder.commit()
    other.join(30)

    assert changed == [2]
    assert [schedule.timezone for schedule in mine.list()] == [SEOUL, SEOUL]


@pytest.mark.parametrize("name", ["create", "upsert", "update", "create_many"])
@each_database
def test_a_create_waits_for_a_change_and_uses_the_new_zone(dynbeat, mine, name):
    mine.create("first", task="t", trigger=NINE)
    call = {
        "create": lambda: mine.create("second", task="t", trigger=NINE),
        "upsert": lambda: mine.upsert("second", task="t", trigger=NINE),
        "update": lambda: mine.update("first", trigger=Cron("30 9 * * *")),
        "create_many": lambda: dynbeat.schedules.create_many(
            [{"owner": "user:42", "name": "second", "task": "t", "trigger": NINE}]
        ),
    }[name]
    other = threading.Thread(target=call)

    with Session(dynbeat.context.database.engine) as holder:
        mine.bound(session=holder).set_timezone(SEOUL)
        other.start()
        other.join(1)
        assert other.is_alive()
        holder.commit()
    other.join(30)

    assert not other.is_alive()
    assert {local(schedule, SEOUL) for schedule in mine.list()} == {9}
    assert {schedule.timezone for schedule in mine.list()} == {SEOUL}


@each_database
def test_creates_of_one_owner_do_not_wait_for_each_other(dynbeat, mine):
    mine.create("first", task="t", trigger=NINE)
    if dynbeat.context.database.capabilities.embedded:
        pytest.skip("SQLite has one writer")

    with Session(dynbeat.context.database.engine) as holder:
        mine.bound(session=holder).create("second", task="t", trigger=NINE)
        mine.create("third", task="t", trigger=NINE)
        holder.commit()

    assert len(mine.list()) == 3


def test_a_change_is_audited_for_the_owner_and_for_each_schedule(mine):
    mine.create("a", task="t", trigger=NINE)
    mine.create("b", task="t", trigger=Every(60))

    with acting(actor="alice"):
        mine.set_timezone(SEOUL)

    moved = [each for each in mine.changes() if each.action == "set_timezone"]
    assert sorted(each.name for each in moved) == ["", "a"]
    for each in moved:
        assert (each.actor, each.before, each.after) == (
            "alice",
            {"timezone": "UTC"},
            {"timezone": SEOUL},
        )


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_change_with_quiet_hours_locks_schedules_in_the_order_of_their_names(dynbeat, mine):
    mine.create("a", task="t", trigger=Cron("0 9 * * *", timezone="UTC"))
    mine.create("b", task="t", trigger=NINE)
    mine.set_quiet_hours(["22:00-07:00"])
    moved = []
    other = threading.Thread(target=lambda: moved.append(mine.set_timezone(SEOUL)))
    engine = create_engine(dynbeat.context.database.engine.url, isolation_level="READ COMMITTED")

    with Session(engine) as session:
        mine.bound(session=session).update("a", description="x")
        other.start()
        wait_for_lock_wait(dynbeat.context.database.engine)
        mine.bound(session=session).update("b", description="x")
        session.commit()
    other.join()
    engine.dispose()

    assert moved == [1]


@pytest.mark.parametrize(
    "edit",
    [
        lambda mine: mine.set_timezone(BERLIN),
        lambda mine: mine.set_quiet_hours(["09:30-12:30"]),
        lambda mine: mine.update("a", max_runs=3),
        lambda mine: mine.update("a", window=5),
        lambda mine: mine.update("a", description="d", args=[1], catch_up="latest", priority=3),
        lambda mine: mine.rename("a", new_name="b"),
    ],
    ids=["zone", "quiet hours", "max_runs", "window", "policies", "rename"],
)
@pytest.mark.parametrize("waits_for", ["quiet hours", "a release", "a beat"])
def test_an_edit_that_is_not_about_a_waiting_fire_time_keeps_it(mine, beat, clock, edit, waits_for):
    mine.create("a", task="t", trigger=Cron("0 10 * * *"), catch_up="all")
    if waits_for == "quiet hours":
        mine.set_quiet_hours(["09:30-12:00"])
    if waits_for == "a release":
        mine.hold(reason="r")
    clock.advance(HOUR + timedelta(minutes=5))
    if waits_for != "a beat":
        beat.run_until_idle()

    edit(mine)
    mine.release()
    clock.advance(4 * HOUR)
    beat.run_until_idle()

    assert [run.fire_at for run in beat.publisher.sent] == [START + HOUR]
    assert mine.runs(status="skipped").items == ()
