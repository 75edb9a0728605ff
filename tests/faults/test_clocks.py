"""The database's clock steps while beat and workers run."""

from collections import Counter
from datetime import timedelta

import pytest
from celery.exceptions import Ignore
from sqlalchemy import select

from celery_dynbeat import Cron, Once
from celery_dynbeat.broker import run_headers
from celery_dynbeat.common.clock import RESYNC_INTERVAL, DatabaseClock
from celery_dynbeat.db.models import NodeKind, Run
from celery_dynbeat.process.heartbeat import HeartbeatWriter
from celery_dynbeat.testing import ManualBeat
from celery_dynbeat.worker.signal_handlers import OutcomeSignals
from celery_dynbeat.worker.task_guard import TaskGuard
from tests.support.applications import MINUTELY, START, application
from tests.support.suites import each_database
from tests.support.worker_stub import WorkerStub

SECOND, MINUTE, HOUR, DAY = (timedelta(seconds=n) for n in (1, 60, 3_600, 86_400))
#: After this time, each process has read the database's clock again.
RESYNCED = RESYNC_INTERVAL + SECOND
STEPS = {"an hour forward": HOUR, "a day forward": DAY, "an hour back": -HOUR}
#: On the servers the step that SQL compares with later instants of the rows.
each_step = pytest.mark.parametrize(
    ("database_url", "step"),
    [
        *(pytest.param("sqlite", step, id=f"sqlite-{name}") for name, step in STEPS.items()),
        pytest.param("postgresql", -HOUR, id="postgresql-an hour back"),
        pytest.param("mariadb", -HOUR, id="mariadb-an hour back"),
    ],
    indirect=["database_url"],
)


class Clocks:
    """The database's clock and the monotonic clock of a host; ``step`` changes only the first."""

    def __init__(self):
        self.instant, self.elapsed = START, 1_000.0

    def advance(self, duration):
        self.instant += duration
        self.elapsed += duration.total_seconds()

    def step(self, duration):
        self.instant += duration

    def clock(self):
        return DatabaseClock(lambda: self.instant, monotonic=lambda: self.elapsed)


@pytest.fixture
def clocks():
    return Clocks()


@pytest.fixture
def stepping(database_url, clocks):
    """Yield an application that reads the database's clock of ``clocks`` once a minute."""
    # No worker starts the runs, and beat must not resend them.
    with application(database_url, clock=clocks.clock(), resend_after=100 * 365 * DAY) as created:
        created.context.prepare()
        yield created


@pytest.fixture
def owned(stepping):
    return stepping.schedules.for_owner("user:42")


@pytest.fixture
def stepped_beat(stepping):
    return ManualBeat(stepping)


def minutes(clocks, beat, count, *, alive=lambda: None):
    """Advance by minutes; in each one the nodes write heartbeats and beat makes its passes."""
    for _ in range(count):
        clocks.advance(MINUTE)
        alive()
        before = len(beat.publisher.sent)
        beat.run_until_idle()
        assert all(run.fire_at <= clocks.instant for run in beat.publisher.sent[before:])


def accounted(dynbeat, name):
    """Return the fire times of the runs, and the number of fire times that they count."""
    statement = select(Run.fire_at, Run.fire_count).where(Run.name == name)
    rows = dynbeat.context.database.read(lambda session: session.execute(statement).all())
    return [row.fire_at for row in rows], sum(row.fire_count for row in rows)


@each_step
def test_a_step_of_the_clock_loses_and_duplicates_no_fire_time(
    stepping, owned, clocks, stepped_beat, step
):
    for catch_up in ("latest", "all", "none"):
        owned.create(catch_up, task="t", trigger=MINUTELY, catch_up=catch_up)
    owned.create("once", task="t", trigger=Once(START + 30 * MINUTE))
    minutes(clocks, stepped_beat, 5)
    farthest = clocks.instant

    clocks.step(step)
    clocks.advance(RESYNCED)
    stepped_beat.run_until_idle()
    minutes(clocks, stepped_beat, 100)

    farthest = max(farthest, clocks.instant)
    for catch_up in ("latest", "all", "none"):
        instants, count = accounted(stepping, catch_up)
        assert count == (farthest - START) // MINUTE
        assert len(set(instants)) == len(instants)
    assert max(Counter(run.run_id for run in stepped_beat.publisher.sent).values()) == 1
    fired = [run.fire_at for run in stepped_beat.publisher.sent if run.name == "once"]
    assert fired == [START + 30 * MINUTE]


@each_step
def test_a_step_of_the_clock_makes_no_run_of_a_living_worker_lost(
    stepping, owned, clocks, stepped_beat, step
):
    worker = WorkerStub(stepping)
    owned.create("long", task="t", trigger=Once(START + MINUTE), on_lost="rerun")
    minutes(clocks, stepped_beat, 2, alive=worker.heartbeat)
    assert worker.start(stepped_beat.publisher.sent[0])

    clocks.step(step)
    clocks.advance(RESYNCED)
    # Beat checks before the worker can write a heartbeat by the new time.
    stepped_beat.run_until_idle()
    minutes(clocks, stepped_beat, 5, alive=worker.heartbeat)

    assert [run.status for run in owned.runs("long")] == ["running"]
    worker.finish(stepped_beat.publisher.sent[0])
    assert [run.status for run in owned.runs("long")] == ["succeeded"]


@pytest.mark.parametrize("step", [HOUR, DAY], ids=str)
def test_a_worker_that_died_at_a_step_forward_is_found(stepping, owned, clocks, stepped_beat, step):
    worker = WorkerStub(stepping)
    owned.create("long", task="t", trigger=Once(START + MINUTE))
    minutes(clocks, stepped_beat, 2, alive=worker.heartbeat)
    assert worker.start(stepped_beat.publisher.sent[0])

    clocks.step(step)
    minutes(clocks, stepped_beat, 5)

    assert [run.status for run in owned.runs("long")] == ["lost"]


@each_database
def test_the_runs_of_a_worker_that_is_replaced_after_a_step_back_are_lost(
    stepping, owned, clocks, stepped_beat
):
    first = WorkerStub(stepping)
    owned.create("long", task="t", trigger=Once(START + MINUTE))
    minutes(clocks, stepped_beat, 2, alive=first.heartbeat)
    assert first.start(stepped_beat.publisher.sent[0])
    clocks.step(-HOUR)
    clocks.advance(RESYNCED)

    writer = heartbeat_writer(stepping, first.name)
    writer.beat()
    minutes(clocks, stepped_beat, 5, alive=writer.beat)

    assert [run.status for run in owned.runs("long")] == ["lost"]


def heartbeat_writer(dynbeat, name):
    """Return the heartbeat writer of a new process, which writes at each call."""
    return HeartbeatWriter(
        database=dynbeat.context.database,
        clock=dynbeat.context.clock,
        kind=NodeKind.WORKER,
        name=name,
        timeout=timedelta(0),
    )


def test_a_living_worker_whose_row_was_deleted_after_a_step_forward_keeps_its_runs(
    stepping, owned, clocks, stepped_beat
):
    writer = heartbeat_writer(stepping, "w1")
    writer.beat()
    worker = WorkerStub(stepping, name="w1")
    owned.create("long", task="t", trigger=Once(START + MINUTE))
    minutes(clocks, stepped_beat, 2, alive=writer.beat)
    assert worker.start(stepped_beat.publisher.sent[0])

    clocks.step(40 * DAY)
    clocks.advance(RESYNCED)
    heartbeat_writer(stepping, "another").beat()
    minutes(clocks, stepped_beat, 5, alive=writer.beat)

    assert [run.status for run in owned.runs("long")] == ["running"]


@pytest.mark.parametrize("step", [HOUR, DAY], ids=str)
def test_a_message_that_is_redelivered_after_a_step_forward_does_not_start_its_run_again(
    stepping, owned, clocks, stepped_beat, step
):
    worker = WorkerStub(stepping)
    owned.create("long", task="t", trigger=Once(START + MINUTE))
    minutes(clocks, stepped_beat, 2, alive=worker.heartbeat)
    assert worker.start(stepped_beat.publisher.sent[0])

    started = []
    clocks.step(step)
    clocks.advance(RESYNCED)
    with pytest.raises(Ignore, match="attempt 1 is running on w1"):
        redeliver(stepping, stepped_beat.publisher.sent[0], started.append)

    assert started == []


def redeliver(dynbeat, run, on_start):
    """Deliver the message of a run to another worker as a redelivery."""

    def body(self):
        on_start(self.request.id)

    task = dynbeat.context.app.task(body, name=run.task, bind=True, shared=False)
    outcomes = OutcomeSignals(dynbeat.context, "w2@test")
    TaskGuard(dynbeat.context, "w2@test", outcomes).wrap(task)
    delivery_info = {"redelivered": True}
    task.push_request(
        id=run.run_id, headers=run_headers(run), delivery_info=delivery_info, retries=0
    )
    task.request.called_directly = False
    task.run()


class CrashError(BaseException):
    """Beat crashes here."""


def crash_after_commit(point):
    if point == "committed":
        raise CrashError(point)


def test_pending_runs_and_backfills_continue_after_a_step_back_when_the_clock_has_caught_up(
    stepping, owned, clocks, stepped_beat
):
    owned.create("interrupted", task="t", trigger=Once(START + MINUTE))
    owned.create("past", task="t", trigger=Cron("* * * * *"))
    clocks.advance(MINUTE)
    with pytest.raises(CrashError):
        ManualBeat(stepping, failpoint=crash_after_commit).tick()
    owned.backfill("past", since=START - 4 * MINUTE, until=START - MINUTE + SECOND, per_minute=1)

    clocks.step(-HOUR)
    clocks.advance(RESYNCED)
    minutes(clocks, stepped_beat, 62)

    sent = [run for run in stepped_beat.publisher.sent if run.name == "interrupted"]
    assert len(sent) == 1
    assert [run.status for run in owned.runs("interrupted")] == ["sent"]
