"""A hold stops the fire times of an owner, or of all; catch_up decides about the missed ones."""

import threading
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from celery_dynbeat import Every
from celery_dynbeat.beat.claim import claim
from celery_dynbeat.beat.holding import hold_rows
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.store import holds
from celery_dynbeat.store.schedules import due
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, START, execute
from tests.support.suites import each_database
from tests.support.waiting import wait_until

MINUTE = timedelta(minutes=1)
NEVER = holds.NEVER
COUNT_PARKED = "UPDATE dynbeat_schedule SET task = 'u' WHERE held_at IS NOT NULL"


@pytest.fixture(params=["owner", "everything"])
def scope(request, dynbeat, mine):
    """Give what holds the schedules of ``mine``."""
    return mine if request.param == "owner" else dynbeat.schedules


def minutes_of(runs):
    return [(run.fire_at - START) / MINUTE for run in runs]


def kept(mine, name=None):
    """Return the history as (minute, status, count), oldest first."""
    return [
        ((run.fire_at - START) / MINUTE, run.status, run.fire_count)
        for run in reversed(mine.runs(name, limit=1000))
    ]


def row_of(dynbeat, name="n"):
    with dynbeat.context.database._session() as session:
        return session.scalars(select(Schedule).where(Schedule.name == name)).one()


def pass_minutes(beat, clock, count):
    for _ in range(count):
        clock.advance(MINUTE)
        beat.run_until_idle()


@contextmanager
def transaction(dynbeat):
    database = dynbeat.context.database
    with database._session() as session:
        database.capabilities.begin_write(session.connection())
        yield session
        session.rollback()


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        ("latest", [(2, "skipped", 2), (3, "sent", 1), (4, "sent", 1)]),
        ("all", [(1, "sent", 1), (2, "sent", 1), (3, "sent", 1), (4, "sent", 1)]),
        ("none", [(3, "sent", 1), (2, "skipped", 2), (4, "sent", 1)]),
    ],
)
@pytest.mark.parametrize("ends", ["release", "until"])
def test_catch_up_decides_after_the_hold(mine, scope, clock, beat, catch_up, ends, expected):
    mine.create("n", task="t", trigger=MINUTELY, catch_up=catch_up)
    scope.hold(reason="r", until=START + 3 * MINUTE if ends == "until" else None)

    pass_minutes(beat, clock, 2)
    assert kept(mine) == []
    clock.advance(MINUTE)
    if ends == "release":
        beat.run_until_idle()
        scope.release()
    beat.run_until_idle()
    pass_minutes(beat, clock, 1)

    assert sorted(kept(mine)) == sorted(expected)


def test_a_held_owner_is_parked_once_at_the_end_of_its_hold(dynbeat, mine, clock, beat):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.hold(reason="a", until=START + 10 * MINUTE)

    pass_minutes(beat, clock, 3)

    row = row_of(dynbeat)
    assert (row.held_at, row.next_run_at) == (START + MINUTE, START + 10 * MINUTE)
    assert row.next_fire_at == START + MINUTE
    assert mine.get("n").next_run_at is None


@each_database
def test_an_earlier_end_of_the_same_hold_applies_to_parked_schedules(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.hold(reason="r")
    pass_minutes(beat, clock, 1)

    mine.hold(reason="r", until=START + 3 * MINUTE)
    pass_minutes(beat, clock, 2)

    assert minutes_of(sent) == [3]


def test_a_release_during_a_hold_of_everything_waits_for_both(dynbeat, mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.hold(reason="a")
    pass_minutes(beat, clock, 1)
    dynbeat.schedules.hold(reason="b")
    mine.release()
    pass_minutes(beat, clock, 1)
    assert sent == []

    dynbeat.schedules.release()
    beat.run_until_idle()

    assert minutes_of(sent) == [2]


def test_recorded_runs_are_sent_during_a_hold(mine, scope, clock, beat, sent):
    def crash(point):
        if point == "committed":
            raise RuntimeError

    mine.create("n", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    with pytest.raises(RuntimeError):
        ManualBeat(beat._context.app.dynbeat, failpoint=crash).tick()
    scope.hold(reason="r")

    pass_minutes(beat, clock, 2)

    assert {run.run_id for run in sent} == {run.id for run in mine.runs("n")}
    assert minutes_of(sent) == [1]


def test_a_new_trigger_during_a_hold_records_the_missed_fire_times(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.hold(reason="r")
    pass_minutes(beat, clock, 2)

    changed = mine.update("n", trigger=Every(120, anchor=START))

    assert changed.next_run_at == START + 4 * MINUTE
    assert kept(mine) == [(2, "skipped", 2)]
    assert mine.runs("n")[0].error == "missed: the schedule was held"
    pass_minutes(beat, clock, 3)
    assert sent == []
    mine.release()
    beat.run_until_idle()
    assert minutes_of(sent) == [4]


def test_each_schedule_in_a_held_scope_is_shown_as_held(dynbeat, mine, scope, clock, beat):
    mine.create("due", task="t", trigger=MINUTELY)
    mine.create("later", task="t", trigger=Every(3_600, anchor=START))
    mine.create("paused", task="t", trigger=MINUTELY, enabled=False)
    dynbeat.schedules.for_owner("user:43").create("n", task="t", trigger=MINUTELY)
    scope.hold(reason="r")
    pass_minutes(beat, clock, 1)

    states = {each.name: (each.state, each.next_run_at) for each in mine.list()}

    assert states == {
        "due": ("held", None),
        "later": ("held", None),
        "paused": ("paused", None),
    }
    assert {mine.get(name).state for name in ("due", "later")} == {"held"}
    assert {each.state for each in dynbeat.schedules.list(state="held")} == {"held"}
    scope.release()
    assert {each.state for each in mine.list()} == {"active", "paused"}


def test_beat_sleeps_during_a_hold_of_everything(dynbeat, mine, clock, beat):
    mine.create("n", task="t", trigger=MINUTELY)
    interval = dynbeat.context.settings.poll_interval
    dynbeat.schedules.hold(reason="r")
    clock.advance(MINUTE)
    # The first pass includes maintenance.
    beat.tick()

    assert beat.tick() == interval
    dynbeat.schedules.hold(reason="r", until=clock.now() + interval / 2)
    assert beat.tick() == interval / 2


def test_a_large_owner_is_parked_and_released_in_batches(dynbeat, mine, clock, beat, sent):
    dynbeat.schedules.create_many(
        {"owner": "user:42", "name": f"n{n:04}", "task": "t", "trigger": MINUTELY}
        for n in range(2_500)
    )
    mine.hold(reason="r")
    pass_minutes(beat, clock, 1)
    assert sent == []
    assert execute(dynbeat, COUNT_PARKED) == 2_500

    mine.release()

    assert execute(dynbeat, COUNT_PARKED) == 0
    beat.run_until_idle()
    assert len({run.name for run in sent}) == len(sent) == 2_500


def claim_once(dynbeat, session, clock):
    return claim(session, now=clock.now(), settings=dynbeat.context.settings)


@each_database
def test_a_release_waits_for_a_claim_that_parks_its_schedules(dynbeat, mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.hold(reason="r")
    clock.advance(MINUTE)
    released = []
    second = threading.Thread(target=lambda: released.append(mine.release()))

    with transaction(dynbeat) as session:
        assert claim_once(dynbeat, session, clock).handled == 1
        second.start()
        second.join(0.3)
        assert released == []
        session.commit()
    wait_until(lambda: released, within=10)
    second.join(10)
    beat.run_until_idle()

    assert minutes_of(sent) == [1]
    assert row_of(dynbeat).held_at is None


@each_database
def test_a_claim_does_not_wait_for_an_open_release(dynbeat, mine, clock, beat, sent):
    if dynbeat.context.database.capabilities.embedded:
        pytest.skip("the write lock of SQLite keeps claim and release apart")
    mine.create("n", task="t", trigger=MINUTELY)
    other = dynbeat.schedules.for_owner("user:43")
    other.create("n", task="t", trigger=MINUTELY)
    mine.hold(reason="r")
    clock.advance(MINUTE)

    with transaction(dynbeat) as session:
        mine.bound(session=session).release()
        beat.run_until_idle()
        assert [run.owner for run in sent] == ["user:43"]
        session.commit()
    # Parked for the poll interval: the release could not see it.
    clock.advance(dynbeat.context.settings.poll_interval)
    beat.run_until_idle()

    assert [run.owner for run in sent] == ["user:43", "user:42"]


@each_database
def test_two_claims_at_the_same_time_are_sure_of_the_hold_of_an_owner(dynbeat, mine, clock):
    if dynbeat.context.database.capabilities.embedded:
        pytest.skip("the write lock of SQLite keeps two claims apart")
    for name in ("a", "b"):
        mine.create(name, task="t", trigger=MINUTELY)
    mine.hold(reason="r")
    clock.advance(MINUTE)
    now, interval = clock.now(), dynbeat.context.settings.poll_interval

    with transaction(dynbeat) as first, transaction(dynbeat) as second:
        for session in (first, second):
            rows = due.lock_due(session, now=now, limit=1)
            assert hold_rows(session, rows, now=now, poll_interval=interval) == ([], 1)
        first.commit()
        second.commit()

    assert {row_of(dynbeat, name).next_run_at for name in ("a", "b")} == {NEVER}


@pytest.mark.parametrize("until", [None, START + timedelta(days=3)])
def test_maintenance_frees_schedules_whose_hold_was_deleted_by_hand(
    dynbeat, mine, clock, beat, sent, until
):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.hold(reason="r", until=until)
    pass_minutes(beat, clock, 1)
    execute(dynbeat, "DELETE FROM dynbeat_hold")

    pass_minutes(beat, clock, 3)

    assert minutes_of(sent)[-1] == 4
    assert row_of(dynbeat).held_at is None


@each_database
def test_a_parked_schedule_that_was_stopped_by_hand_stops_no_other(
    dynbeat, mine, clock, beat, sent
):
    """A process of an earlier version also leaves held_at when it pauses or finishes one."""
    mine.create("n", task="t", trigger=MINUTELY)
    dynbeat.schedules.for_owner("user:43").create("n", task="t", trigger=MINUTELY)
    mine.hold(reason="r")
    pass_minutes(beat, clock, 1)
    stop = "UPDATE dynbeat_schedule SET enabled = false, next_run_at = NULL"
    assert execute(dynbeat, f"{stop} WHERE held_at IS NOT NULL") == 1

    pass_minutes(beat, clock, 2)

    assert {run.owner for run in sent} == {"user:43"}
    assert minutes_of(sent) == [1, 2, 3]
    assert execute(dynbeat, COUNT_PARKED) == 0


@each_database
def test_a_release_with_an_old_snapshot_takes_effect_with_the_next_maintenance(
    dynbeat, mine, clock, beat, sent
):
    """On PostgreSQL such a transaction cannot see that a claim has parked the schedule."""
    database = dynbeat.context.database
    if database.capabilities.embedded:
        pytest.skip("the write lock of SQLite keeps claim and release apart")
    mine.create("n", task="t", trigger=MINUTELY)
    mine.hold(reason="r")
    engine = database.engine.execution_options(isolation_level="REPEATABLE READ")
    with Session(engine) as session:
        mine.bound(session=session).get("n")
        pass_minutes(beat, clock, 1)
        assert execute(dynbeat, COUNT_PARKED) == 1
        mine.bound(session=session).release()
        session.commit()

    settings = dynbeat.context.settings
    clock.advance(settings.node_timeout / 4)
    beat.tick()
    clock.advance(settings.poll_interval)
    beat.run_until_idle()

    assert minutes_of(sent) == [1]
    assert row_of(dynbeat).held_at is None
