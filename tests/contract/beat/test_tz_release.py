"""After a release of the tz database, beat plans schedules whose fire times move again, once."""

from datetime import timedelta

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from celery_dynbeat import Cron, Every, Once, store
from celery_dynbeat.beat import maintenance
from celery_dynbeat.beat import tz_release as replanning
from celery_dynbeat.beat.tz_release import is_newer
from celery_dynbeat.common.settings import tz_release
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.store import TzState
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import START, execute
from tests.support.suites import one_database

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
BERLIN = "Europe/Berlin"
#: When schedules that were planned with an earlier release would fire.
WRONG = START + 30 * HOUR


@pytest.fixture(autouse=True)
def named(dynbeat):
    """Give the tables the row that a beat writes when it starts."""
    with dynbeat.context.database.engine.begin() as connection:
        store.record_application(connection, name="contract", now=START)


def state_of(dynbeat):
    with dynbeat.context.database.engine.connect() as connection:
        return store.tz_state(connection)


def set_state(dynbeat, **columns):
    values = ", ".join(f"{name} = :{name}" for name in columns)
    execute(dynbeat, f"UPDATE dynbeat_application SET {values}", **columns)


def plan_with_earlier_release(dynbeat, where="1 = 1"):
    sql = f"UPDATE dynbeat_schedule SET next_fire_at = :at, next_run_at = :at WHERE {where}"
    execute(dynbeat, sql, at=WRONG)
    set_state(dynbeat, tz_release="2000a")


def make_zoned(mine, number):
    return [
        mine.create(f"n{each}", task="t", trigger=Cron("0 9 * * *", timezone=BERLIN))
        for each in range(number)
    ]


def work(beat, clock):
    """Let beat work until it has nothing to do, some minutes after its start."""
    beat.tick()
    for _ in range(3):
        clock.advance(maintenance.FIRST_DELAY)
        beat.run_until_idle()


def test_only_schedules_whose_next_fire_time_moves_change(dynbeat, mine, clock, beat, caplog):
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
    caplog.set_level("INFO")

    work(beat, clock)

    rows = {row.name: row for row in mine.list()}
    assert rows["moves"].next_run_at == made["moves"].next_run_at
    assert rows["same"].next_run_at == made["same"].next_run_at
    assert rows["once"].next_run_at == made["once"].next_run_at
    assert rows["paused"].next_run_at is None
    # UTC has no clock changes.
    assert rows["utc"].next_run_at == WRONG
    assert {row.version for row in rows.values()} == {1, 2}
    assert state_of(dynbeat) == TzState(tz_release())
    [record] = [each for each in caplog.records if getattr(each, "event", "") == "zones_replanned"]
    assert (record.schedules, record.release) == (1, tz_release())


def test_quiet_hours_of_a_zone_are_planned_again(dynbeat, mine, clock, beat):
    mine.set_timezone(BERLIN)
    mine.set_quiet_hours(["20:00-08:00"])
    made = mine.create("n", task="t", trigger=Once(START + 12 * HOUR))
    execute(dynbeat, "UPDATE dynbeat_schedule SET next_run_at = :at", at=WRONG)
    set_state(dynbeat, tz_release="2000a")

    work(beat, clock)

    assert mine.get("n").next_run_at == made.next_run_at == START + 22 * HOUR


@one_database
def test_a_fire_time_that_skip_took_out_stays_out(dynbeat, mine, clock, beat):
    (made,) = make_zoned(mine, 1)
    mine.skip("n0", made.next_run_at)
    plan_with_earlier_release(dynbeat)

    work(beat, clock)

    assert mine.get("n0").next_run_at == made.next_run_at + 24 * HOUR


def plan_at_with_earlier_release(dynbeat, at):
    sql = "UPDATE dynbeat_schedule SET next_fire_at = :at, next_run_at = :at"
    execute(dynbeat, sql, at=at)
    set_state(dynbeat, tz_release="2000a")


@pytest.mark.parametrize(("catch_up", "status"), [("latest", "sent"), ("none", "skipped")])
def test_a_fire_time_that_moves_into_the_past_is_sent_or_recorded(
    dynbeat, mine, clock, beat, catch_up, status
):
    trigger = Cron("30 9 * * *", timezone=BERLIN)
    mine.create("n", task="t", trigger=trigger, catch_up=catch_up)
    # It is at 08:30 UTC with the new release, before the start of beat.
    plan_at_with_earlier_release(dynbeat, START + 30 * MINUTE)

    work(beat, clock)
    clock.advance(HOUR)
    beat.run_until_idle()

    [run] = mine.runs()
    assert (run.status, run.scheduled_for) == (status, START - 30 * MINUTE)
    assert mine.get("n").next_run_at == START + 23 * HOUR + 30 * MINUTE


def test_a_fire_time_that_moves_to_a_later_time_is_not_sent_twice_on_a_day(
    dynbeat, mine, clock, beat
):
    mine.create("n", task="t", trigger=Cron("0 11 * * *", timezone=BERLIN))
    # 11:00 was at 09:01 UTC, and is at 10:00 UTC with the new release.
    plan_at_with_earlier_release(dynbeat, START + MINUTE)
    clock.advance(MINUTE)
    beat.run_until_idle()
    plan_at_with_earlier_release(dynbeat, START + MINUTE + 24 * HOUR)

    work(beat, clock)
    clock.advance(2 * HOUR)
    beat.run_until_idle()

    assert [run.scheduled_for for run in mine.runs()] == [START + MINUTE]
    assert mine.get("n").next_run_at == START + 25 * HOUR


@one_database
def test_a_fire_time_with_a_run_is_not_sent_again(dynbeat, mine, clock, beat):
    mine.create("n", task="t", trigger=Cron("0 10 * * *", timezone=BERLIN))
    execute(dynbeat, "UPDATE dynbeat_schedule SET last_run_at = :at", at=START)
    # The nearest one is at START.
    plan_at_with_earlier_release(dynbeat, START + 30 * MINUTE)

    work(beat, clock)

    assert list(mine.runs()) == []
    assert mine.get("n").next_run_at == START + 24 * HOUR


@one_database
def test_the_first_beat_records_its_release_and_moves_nothing(dynbeat, mine, clock, beat):
    make_zoned(mine, 1)
    plan_with_earlier_release(dynbeat)
    set_state(dynbeat, tz_release=None)

    work(beat, clock)

    assert mine.get("n0").next_run_at == WRONG
    assert state_of(dynbeat) == TzState(tz_release())


@one_database
def test_an_earlier_release_moves_nothing(dynbeat, mine, clock, beat):
    make_zoned(mine, 1)
    plan_with_earlier_release(dynbeat)
    set_state(dynbeat, tz_release="9999a")

    work(beat, clock)

    assert mine.get("n0").next_run_at == WRONG
    assert state_of(dynbeat) == TzState("9999a")


def test_batches_of_two_beats_plan_each_schedule_once_also_after_a_crash(limited, clock, caplog):
    dynbeat = limited(batch_size=2)
    mine = dynbeat.schedules.for_owner("user:42")
    made = make_zoned(mine, 9)
    plan_with_earlier_release(dynbeat)
    caplog.set_level("INFO")
    beats = [ManualBeat(dynbeat), ManualBeat(dynbeat)]
    for beat in beats:
        beat.tick()
    clock.advance(maintenance.FIRST_DELAY)
    for beat in beats:
        beat.tick()
    # The first beat dies. The position is in the database.
    assert state_of(dynbeat) == TzState(tz_release(), after_id=made[3].id)
    assert mine.get("n4").next_run_at == WRONG

    for _ in range(9):
        clock.advance(MINUTE)
        beats[1].tick()

    assert {row.next_run_at for row in mine.list()} == {made[0].next_run_at}
    assert state_of(dynbeat) == TzState(tz_release())
    records = [each for each in caplog.records if getattr(each, "event", "") == "zones_replanned"]
    assert sum(each.schedules for each in records) == 9


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_locked_schedule_delays_no_other_and_is_planned_later(limited, clock):
    dynbeat = limited(batch_size=2)
    mine = dynbeat.schedules.for_owner("user:42")
    (first, *_) = make_zoned(mine, 5)
    plan_with_earlier_release(dynbeat)
    beat = ManualBeat(dynbeat)
    engine = create_engine(dynbeat.context.database.engine.url, isolation_level="READ COMMITTED")

    with Session(engine) as holder:
        holder.execute(select(Schedule).where(Schedule.name == "n1").with_for_update()).all()
        work(beat, clock)
        assert {row.name for row in mine.list() if row.next_run_at == WRONG} == {"n1"}
        assert state_of(dynbeat).locked_ids == (first.id + 1,)
    engine.dispose()

    work(beat, clock)
    assert {row.next_run_at for row in mine.list()} == {first.next_run_at}
    assert state_of(dynbeat) == TzState(tz_release())


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("max_locked", [1, 1_000])
def test_a_locked_schedule_makes_beat_read_no_other_again(limited, clock, monkeypatch, max_locked):
    dynbeat = limited(batch_size=10)
    mine = dynbeat.schedules.for_owner("user:42")
    made = make_zoned(mine, 40)
    plan_with_earlier_release(dynbeat)
    monkeypatch.setattr(replanning, "MAX_LOCKED", max_locked)
    beat, positions = ManualBeat(dynbeat), []
    engine = create_engine(dynbeat.context.database.engine.url, isolation_level="READ COMMITTED")

    with Session(engine) as holder:
        holder.execute(select(Schedule).where(Schedule.name == "n1").with_for_update()).all()
        beat.tick()
        for _ in range(20):
            clock.advance(MINUTE)
            beat.tick()
            positions.append(state_of(dynbeat).after_id)
    engine.dispose()

    last = made[9 if max_locked == 1 else -1]
    assert positions == sorted(positions)
    assert state_of(dynbeat) == TzState(tz_release(), last.id, locked_ids=(made[1].id,))

    for _ in range(9):
        clock.advance(MINUTE)
        beat.tick()
    assert {row.next_run_at for row in mine.list()} == {made[0].next_run_at}
    assert state_of(dynbeat) == TzState(tz_release())


def test_a_release_is_newer_by_year_and_letters():
    assert is_newer("2026b", "2026a")
    assert is_newer("2027a", "2026z")
    assert is_newer("2026za", "2026z")
    assert not is_newer("2026b", "2026b")
    assert not is_newer("2025z", "2026a")


def test_this_process_knows_its_release():
    assert tz_release() is None or is_newer(tz_release(), "2020a")
