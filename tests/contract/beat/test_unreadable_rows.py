"""A row that Python cannot read affects no other schedule, and its error is stored."""

import sys
from datetime import timedelta

import pytest
from sqlalchemy import text

from celery_dynbeat import Cron, Once
from celery_dynbeat.beat.claim import claim
from celery_dynbeat.beat.due_poller import LOCKED_PAUSE
from celery_dynbeat.store import due
from tests.support.applications import MINUTELY, START, execute


def huge(depth):
    return "[" * depth + "]" * depth


#: Values that SQL can store in each database and Python cannot read: column and value.
UNREADABLE: dict[str, dict[str, tuple[str, object]]] = {
    "sqlite": {
        "huge number": ("args", "[" + "1" * 5_000 + "]"),
        "no date": ("end_at", "tomorrow"),
        "number for a date": ("next_fire_at", 7),
    },
    "postgresql": {
        "huge number": ("args", "[" + "1" * 5_000 + "]"),
        "infinity": ("end_at", "infinity"),
        "before all": ("next_fire_at", "-infinity"),
        "before Christ": ("anchor_at", "0044-03-15 00:00:00 BC"),
    },
    "mariadb": {
        "huge number": ("args", "[" + "1" * 5_000 + "]"),
        "no date": ("next_fire_at", "0000-00-00"),
    },
}
# The json module reads about 1,000 levels in Python 3.11, 1,500 in 3.12 and 10,000 in 3.13. SQLite
# stores 1,000 levels.
if sys.version_info < (3, 12):
    UNREADABLE["sqlite"]["deep list"] = ("kwargs", huge(990))
if sys.version_info < (3, 13):
    UNREADABLE["postgresql"]["deep list"] = ("options", huge(3_000))
#: Values that Python can read but not calculate with.
BEYOND = {"forever": "1e300", "not a number": "'NaN'"}


def kind_of(dynbeat):
    name = dynbeat.context.database.engine.dialect.name
    return "mariadb" if name == "mysql" else name


def damage(dynbeat, column, value, *, table="dynbeat_schedule", where="name = 'bad'"):
    """Write a value with the strict mode of the database switched off."""
    database = dynbeat.context.database
    with database.engine.begin() as connection:
        if kind_of(dynbeat) == "mariadb":
            connection.execute(text("SET SESSION sql_mode = ''"))
        connection.execute(
            text(f"UPDATE {table} SET {column} = :value WHERE {where}"), {"value": value}
        )
        if kind_of(dynbeat) == "mariadb":
            connection.execute(text("SET SESSION sql_mode = DEFAULT"))


def shown(dynbeat):
    """Return name, next_run_at IS NULL and error of each schedule, also of unreadable ones."""
    with dynbeat.context.database.engine.connect() as connection:
        return {
            name: (bool(asleep), error)
            for name, asleep, error in connection.execute(
                text("SELECT name, next_run_at IS NULL, error FROM dynbeat_schedule")
            )
        }


def is_quarantined(dynbeat, name, column):
    asleep, error = shown(dynbeat)[name]
    return asleep and column in error and len(error) < 1_000


def idle_passes(beat):
    """Return after how many passes beat sleeps for its whole poll interval."""
    for number in range(10):
        if beat.tick() >= timedelta(seconds=1):
            return number
    pytest.fail("beat never became idle")


def test_unreadable_rows_affect_no_other_schedule(dynbeat, mine, clock, beat, sent):
    cases = UNREADABLE[kind_of(dynbeat)]
    for number, (case, (column, value)) in enumerate(cases.items()):
        for name in (f"before {number}", case, f"after {number}"):
            mine.create(name, task="t", trigger=MINUTELY)
        damage(dynbeat, column, value, where=f"name = '{case}'")
    clock.advance(timedelta(minutes=1))

    beat.tick()

    good = {name for name in shown(dynbeat) if name not in cases}
    assert {run.name for run in sent} == good
    for case, (column, _) in cases.items():
        assert is_quarantined(dynbeat, case, column)
    assert idle_passes(beat) <= 1
    assert len(sent) == len(good)


def test_unreadable_unplanned_rows_affect_no_other_schedule(dynbeat, clock, beat, sent):
    cases = UNREADABLE[kind_of(dynbeat)]
    for name in ("good", *cases):
        execute(
            dynbeat,
            "INSERT INTO dynbeat_schedule (name, task, trigger_kind, trigger_spec)"
            " VALUES (:name, 't', 'cron', '* * * * *')",
            name=name,
        )
    for case, (column, value) in cases.items():
        damage(dynbeat, column, value, where=f"name = '{case}'")

    assert idle_passes(beat) <= 2
    clock.advance(timedelta(minutes=2))
    beat.run_until_idle()

    assert {run.name for run in sent} == {"good"}
    for case, (column, _) in cases.items():
        assert is_quarantined(dynbeat, case, column)


@pytest.mark.parametrize("overlap", ["allow", "skip", "buffer_one", "cancel_previous"])
@pytest.mark.parametrize("value", BEYOND.values(), ids=BEYOND)
def test_durations_out_of_range_affect_no_other_schedule(
    dynbeat, mine, clock, beat, overlap, value
):
    columns = ["max_run_time", "jitter", "expires_after", "catch_up_window"]
    if kind_of(dynbeat) == "mariadb" and "NaN" in value:
        pytest.skip("MariaDB has no such number")
    for name in ("good", *columns):
        mine.create(name, task="t", trigger=MINUTELY, overlap=overlap)
    for column in columns:
        execute(dynbeat, f"UPDATE dynbeat_schedule SET {column} = {value} WHERE name = '{column}'")
    clock.advance(timedelta(minutes=1))

    beat.run_until_idle()

    assert [run.name for run in beat.publisher.sent] == ["good"]
    for column in columns:
        asleep, error = shown(dynbeat)[column]
        assert asleep
        assert error
    assert idle_passes(beat) == 0


#: Values of next_run_at that Python cannot read and that count as due.
FRONTS = {"sqlite": "2026-02-30", "postgresql": "-infinity", "mariadb": "0000-00-00"}


def test_an_unreadable_next_run_at_is_planned_again(dynbeat, mine, clock, beat, sent):
    for name in ("bad", "good"):
        mine.create(name, task="t", trigger=MINUTELY)
    damage(dynbeat, "next_run_at", FRONTS[kind_of(dynbeat)])
    clock.advance(timedelta(minutes=1))

    assert idle_passes(beat) <= 2

    assert sorted(run.name for run in sent) == ["bad", "good"]
    assert mine.get("bad").next_run_at == clock.now() + MINUTELY.interval


#: Values of next_run_at that Python cannot read and that are never due.
NEVER = {"sqlite": "tomorrow", "postgresql": "infinity"}


def test_an_unreadable_next_run_at_in_the_far_future_does_not_wake_beat(
    dynbeat, mine, clock, beat, sent
):
    kind = kind_of(dynbeat)
    if kind not in NEVER:
        pytest.skip("MariaDB has no such instant")
    mine.create("bad", task="t", trigger=MINUTELY)
    damage(dynbeat, "next_run_at", NEVER[kind])

    assert idle_passes(beat) <= 1

    mine.create("good", task="t", trigger=MINUTELY)
    clock.advance(timedelta(minutes=1))
    beat.run_until_idle()
    assert [run.name for run in sent] == ["good"]


def test_a_second_beat_claims_rows_that_the_first_has_not_locked(dynbeat, mine, clock, sent, beat):
    if dynbeat.context.database.capabilities.embedded:
        pytest.skip("one writer at a time")
    column, value = UNREADABLE[kind_of(dynbeat)]["huge number"]
    for name in ("bad", "worse"):
        mine.create(name, task="t", trigger=MINUTELY)
        damage(dynbeat, column, value, where=f"name = '{name}'")
    clock.advance(timedelta(minutes=1))
    database = dynbeat.context.database

    with database._session() as first:
        assert len(due.lock_due(first, now=clock.now(), limit=1).unreadable) == 1
        mine.create("good", task="t", trigger=Once(clock.now() + timedelta(seconds=1)))
        clock.advance(timedelta(seconds=1))
        assert beat.tick() == timedelta(0)
        assert beat.tick() == LOCKED_PAUSE
        assert [run.name for run in sent] == ["good"]
        assert [asleep for asleep, _ in shown(dynbeat).values()] == [False, True, True]
        first.commit()
    beat.run_until_idle()

    assert is_quarantined(dynbeat, "bad", column)
    assert is_quarantined(dynbeat, "worse", column)


def left_pending(dynbeat, clock, beat, *names):
    """Record an overdue run of each schedule that is not sent."""
    mine = dynbeat.schedules.for_owner("user:42")
    for name in names:
        mine.create(name, task="t", trigger=MINUTELY)
    clock.advance(timedelta(minutes=1))
    beat.publisher.fail_with(OSError("the broker is unreachable"))
    with dynbeat.context.database._session() as session:
        claim(session, now=clock.now(), settings=dynbeat.context.settings)
        session.commit()
    beat.publisher.fail_with(None)
    clock.advance(dynbeat.context.settings.dispatch_timeout)


@pytest.mark.parametrize("value", [None, "1e300"])
def test_the_sweep_fails_the_run_of_an_unreadable_schedule_and_sends_the_others(
    dynbeat, mine, clock, beat, sent, value
):
    left_pending(dynbeat, clock, beat, "a", "bad", "c")
    column = "expires_after"
    if value is None:
        column, value = UNREADABLE[kind_of(dynbeat)]["huge number"]
    damage(dynbeat, column, value)

    beat.tick()

    assert sorted(run.name for run in sent) == ["a", "c"]
    (failed,) = mine.runs(status="failed")
    assert failed.name == "bad"
    assert failed.error
    asleep, error = shown(dynbeat)["bad"]
    assert asleep
    assert error
    assert idle_passes(beat) == 0


def test_the_sweep_fails_an_unreadable_run_and_leaves_its_schedule(dynbeat, clock, beat, sent):
    left_pending(dynbeat, clock, beat, "a", "bad", "c")
    front = FRONTS[kind_of(dynbeat)]
    damage(dynbeat, "created_at", front, table="dynbeat_run")
    damage(dynbeat, "overdue_at", front, table="dynbeat_run")

    assert idle_passes(beat) <= 1

    assert sorted(run.name for run in sent) == ["a", "c"]
    with dynbeat.context.database.engine.connect() as connection:
        ((status, error),) = connection.execute(
            text("SELECT status, error FROM dynbeat_run WHERE name = 'bad'")
        )
    assert status == "failed"
    assert "created_at" in error
    assert shown(dynbeat)["bad"] == (False, None)


def test_the_backfill_of_an_unreadable_schedule_waits_and_the_others_continue(
    dynbeat, mine, clock, beat, sent
):
    for name in ("bad", "good"):
        mine.create(name, task="t", trigger=Cron("* * * * *", timezone="UTC"))
        clock.advance(timedelta(seconds=1))
        mine.backfill(name, since=START - timedelta(minutes=3), until=START + timedelta(seconds=1))
    column, value = UNREADABLE[kind_of(dynbeat)]["huge number"]
    damage(dynbeat, column, value)

    assert idle_passes(beat) <= 4

    assert {run.name for run in sent} == {"good"}
    assert is_quarantined(dynbeat, "bad", column)
    mine.update("bad", args=[1])
    clock.advance(timedelta(seconds=10))
    beat.run_until_idle()
    assert {run.name for run in sent} == {"bad", "good"}


def test_an_unreadable_backfill_is_cancelled(dynbeat, mine, clock, beat, sent):
    for name in ("bad", "good"):
        mine.create(name, task="t", trigger=Cron("* * * * *", timezone="UTC"))
        mine.backfill(name, since=START - timedelta(minutes=3), until=START + timedelta(seconds=1))
        clock.advance(timedelta(seconds=1))
    where = "schedule_id = (SELECT id FROM dynbeat_schedule WHERE name = 'bad')"
    for column in ("next_run_at", "after_at"):
        front = FRONTS[kind_of(dynbeat)]
        damage(dynbeat, column, front, table="dynbeat_request", where=where)

    assert idle_passes(beat) <= 4

    assert {run.name for run in sent} == {"good"}
    assert [each.status for each in mine.requests("bad")] == ["cancelled"]


def test_the_list_shows_an_unreadable_row_with_its_error(dynbeat, mine):
    cases = UNREADABLE[kind_of(dynbeat)]
    for name in ("good", *cases):
        mine.create(name, task="t", trigger=MINUTELY)
    good = mine.get("good")
    for case, (column, value) in cases.items():
        damage(dynbeat, column, value, where=f"name = '{case}'")

    listed = {each.name: each for each in mine.list()}

    assert listed.pop("good") == good
    for case, (column, _) in cases.items():
        assert listed[case] == mine.get(case)
        assert column in listed[case].error
        assert getattr(listed[case], column, None) is None
    mine.delete(next(iter(cases)))
    assert len(mine.list()) == len(cases)


def test_an_update_repairs_an_unreadable_row(dynbeat, mine, clock, beat, sent):
    for name in ("bad", "worse"):
        mine.create(name, task="t", trigger=MINUTELY)
    column, value = UNREADABLE[kind_of(dynbeat)]["huge number"]
    damage(dynbeat, column, value)
    damage(dynbeat, "next_run_at", FRONTS[kind_of(dynbeat)], where="name = 'worse'")

    mended = mine.update("bad", args=[1])
    mine.pause("worse")

    assert (mended.args, mended.error) == ([1], None)
    assert mine.get("worse").error is None
    clock.advance(timedelta(minutes=1))
    beat.run_until_idle()
    assert [run.args for run in sent] == [[1]]
