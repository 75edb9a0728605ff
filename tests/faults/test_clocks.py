"""Clocks that are wrong, and clocks that are set while everything runs."""

from collections import Counter
from datetime import timedelta

import pytest
from celery.exceptions import Ignore
from sqlalchemy import select

from celery_dynbeat import Cron, Once
from celery_dynbeat.common.clock import RESYNC_INTERVAL, DatabaseClock
from celery_dynbeat.db.models import NodeKind, Run
from celery_dynbeat.runtime.heartbeat import HeartbeatWriter
from celery_dynbeat.testing import ManualBeat
from celery_dynbeat.worker.signal_handlers import OutcomeSignals
from celery_dynbeat.worker.task_guard import TaskGuard
from tests.support.applications import MINUTELY, START, application
from tests.support.worker_stub import WorkerStub

SECOND, MINUTE, HOUR, DAY = (timedelta(seconds=n) for n in (1, 60, 3_600, 86_400))
#: After this, each process has read the database's clock anew.
READ_ANEW = RESYNC_INTERVAL + SECOND
STEPS = {"an hour on": HOUR, "a day on": DAY, "an hour back": -HOUR}


class Wall:
    """The database's clock and the monotonic one of a host: time goes by in both of them."""

    def __init__(self):
        self.instant, self.elapsed = START, 1_000.0

    def pass_by(self, duration):
        self.instant += duration
        self.elapsed += duration.total_seconds()

    def step(self, duration):
        self.instant += duration

    def clock(self):
        return DatabaseClock(lambda: self.instant, monotonic=lambda: self.elapsed)


@pytest.fixture
def wall():
    return Wall()


@pytest.fixture
def stepping(database_url, wall):
    """Give an application whose clock is the one of ``wall``, read once a minute."""
    # Nothing is taken for forgotten by the broker: there is no worker that would start it.
    with application(database_url, clock=wall.clock(), resend_after=100 * 365 * DAY) as made:
        made.context.prepare()
        yield made


@pytest.fixture
def owned(stepping):
    return stepping.schedules.for_owner("user:42")


@pytest.fixture
def stepped_beat(stepping):
    return ManualBeat(stepping)


def minutes(wall, beat, count, *, alive=lambda: None):
    """Let minutes go by in which the nodes say that they are alive and beat does its work."""
    for _ in range(count):
        wall.pass_by(MINUTE)
        alive()
        before = len(beat.publisher.sent)
        beat.run_until_idle()
        assert all(run.scheduled_for <= wall.instant for run in beat.publisher.sent[before:])


def accounted(dynbeat, name):
    """Return the fire times that the history holds, and for how many it accounts."""
    statement = select(Run.scheduled_for, Run.fire_count).where(Run.name == name)
    rows = dynbeat.context.database.read(lambda session: session.execute(statement).all())
    return [row.scheduled_for for row in rows], sum(row.fire_count for row in rows)


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_clock_that_is_set_loses_and_doubles_no_fire_time(
    stepping, owned, wall, stepped_beat, step
):
    for catch_up in ("latest", "all", "none"):
        owned.create(catch_up, task="t", trigger=MINUTELY, catch_up=catch_up)
    owned.create("once", task="t", trigger=Once(START + 30 * MINUTE))
    minutes(wall, stepped_beat, 5)
    farthest = wall.instant

    wall.step(step)
    wall.pass_by(READ_ANEW)
    stepped_beat.run_until_idle()
    minutes(wall, stepped_beat, 100)

    farthest = max(farthest, wall.instant)
    for catch_up in ("latest", "all", "none"):
        instants, count = accounted(stepping, catch_up)
        assert count == (farthest - START) // MINUTE
        assert len(set(instants)) == len(instants)
    assert max(Counter(run.run_id for run in stepped_beat.publisher.sent).values()) == 1
    fired = [run.scheduled_for for run in stepped_beat.publisher.sent if run.name == "once"]
    assert fired == [START + 30 * MINUTE]


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_clock_that_is_set_makes_no_run_of_a_living_worker_lost(
    stepping, owned, wall, stepped_beat, step
):
    worker = WorkerStub(stepping)
    owned.create("long", task="t", trigger=Once(START + MINUTE), on_lost="rerun")
    minutes(wall, stepped_beat, 2, alive=worker.live)
    assert worker.start(stepped_beat.publisher.sent[0])

    wall.step(step)
    wall.pass_by(READ_ANEW)
    # Beat looks before the worker could say anything by the new time.
    stepped_beat.run_until_idle()
    minutes(wall, stepped_beat, 5, alive=worker.live)

    assert [run.status for run in owned.runs("long")] == ["running"]
    worker.finish(stepped_beat.publisher.sent[0])
    assert [run.status for run in owned.runs("long")] == ["succeeded"]


@pytest.mark.parametrize("step", [HOUR, DAY], ids=str)
def test_a_worker_that_died_as_the_clock_was_set_on_is_found_all_the_same(
    stepping, owned, wall, stepped_beat, step
):
    worker = WorkerStub(stepping)
    owned.create("long", task="t", trigger=Once(START + MINUTE))
    minutes(wall, stepped_beat, 2, alive=worker.live)
    assert worker.start(stepped_beat.publisher.sent[0])

    wall.step(step)
    minutes(wall, stepped_beat, 5)

    assert [run.status for run in owned.runs("long")] == ["lost"]


def test_a_worker_that_is_replaced_after_the_clock_was_set_back_leaves_no_run_behind(
    stepping, owned, wall, stepped_beat
):
    first = WorkerStub(stepping)
    owned.create("long", task="t", trigger=Once(START + MINUTE))
    minutes(wall, stepped_beat, 2, alive=first.live)
    assert first.start(stepped_beat.publisher.sent[0])
    wall.step(-HOUR)
    wall.pass_by(READ_ANEW)

    heart = heartbeat(stepping, first.name)
    heart.beat()
    minutes(wall, stepped_beat, 5, alive=heart.beat)

    assert [run.status for run in owned.runs("long")] == ["lost"]


def heartbeat(dynbeat, name):
    """Return the heartbeat of a process that has just begun, which never waits for its turn."""
    return HeartbeatWriter(
        database=dynbeat.context.database,
        clock=dynbeat.context.clock,
        kind=NodeKind.WORKER,
        name=name,
        timeout=timedelta(0),
    )


def test_a_living_worker_that_was_forgotten_as_the_clock_was_set_on_keeps_its_runs(
    stepping, owned, wall, stepped_beat
):
    heart = heartbeat(stepping, "w1")
    heart.beat()
    worker = WorkerStub(stepping, name="w1")
    owned.create("long", task="t", trigger=Once(START + MINUTE))
    minutes(wall, stepped_beat, 2, alive=heart.beat)
    assert worker.start(stepped_beat.publisher.sent[0])

    wall.step(40 * DAY)
    wall.pass_by(READ_ANEW)
    heartbeat(stepping, "another").beat()
    minutes(wall, stepped_beat, 5, alive=heart.beat)

    assert [run.status for run in owned.runs("long")] == ["running"]


@pytest.mark.parametrize("step", [HOUR, DAY], ids=str)
def test_a_message_that_comes_again_as_the_clock_is_set_on_starts_no_second_time(
    stepping, owned, wall, stepped_beat, step
):
    worker = WorkerStub(stepping)
    owned.create("long", task="t", trigger=Once(START + MINUTE))
    minutes(wall, stepped_beat, 2, alive=worker.live)
    assert worker.start(stepped_beat.publisher.sent[0])

    began = []
    wall.step(step)
    wall.pass_by(READ_ANEW)
    with pytest.raises(Ignore, match="redelivered while it is running"):
        deliver_again(stepping, stepped_beat.publisher.sent[0], began.append)

    assert began == []


def deliver_again(dynbeat, run, begin):
    """Give another worker the message of a run that the broker delivers once more."""

    def body(self):
        begin(self.request.id)

    task = dynbeat.context.app.task(body, name=run.task, bind=True, shared=False)
    outcomes = OutcomeSignals(dynbeat.context, "w2@test")
    TaskGuard(dynbeat.context, "w2@test", outcomes).wrap(task)
    again = {"redelivered": True}
    task.push_request(id=run.run_id, headers=run.headers, delivery_info=again, retries=0)
    task.request.called_directly = False
    task.run()


class CrashError(Exception):
    """Beat ends here."""


def crash_after_commit(point):
    if point == "committed":
        raise CrashError(point)


def test_what_waits_as_the_clock_is_set_back_goes_on_when_it_has_caught_up(
    stepping, owned, wall, stepped_beat
):
    owned.create("interrupted", task="t", trigger=Once(START + MINUTE))
    owned.create("past", task="t", trigger=Cron("* * * * *"))
    wall.pass_by(MINUTE)
    with pytest.raises(CrashError):
        ManualBeat(stepping, failpoint=crash_after_commit).tick()
    owned.backfill("past", start=START - 4 * MINUTE, end=START - MINUTE, batch_size=1)

    wall.step(-HOUR)
    wall.pass_by(READ_ANEW)
    minutes(wall, stepped_beat, 62)

    sent = [run for run in stepped_beat.publisher.sent if run.name == "interrupted"]
    assert len(sent) == 1
    assert [run.status for run in owned.runs("interrupted")] == ["sent"]
