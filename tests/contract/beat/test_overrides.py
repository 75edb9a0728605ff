"""Tasks whose sending the application overrides: each of their runs ends."""

from dataclasses import replace
from datetime import timedelta

import pytest
from celery.app.task import Task

from celery_dynbeat import Retry
from celery_dynbeat.broker.publisher import Publisher
from celery_dynbeat.common.states import Status
from celery_dynbeat.testing import ManualBeat, RecordingPublisher
from tests.support.applications import MINUTELY
from tests.support.worker_stub import WorkerStub

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


class Fickle(Task):
    """An ``apply_async`` whose behaviour the test sets."""

    does = "send"

    def apply_async(self, args=None, kwargs=None, **options):
        if "send" in Fickle.does or (Fickle.does == "raise for bad" and args != ["bad"]):
            super().apply_async(args, kwargs, **options)
        elif Fickle.does == "raise for bad":
            self.fail()
        if Fickle.does in {"raise", "send and raise"}:
            self.fail()

    def fail(self):
        msg = "already queued"
        raise RuntimeError(msg)


@pytest.fixture
def beat(dynbeat, clock, mine):
    """Give a beat with a due run of a task that overrides ``apply_async``."""
    app = dynbeat.context.app

    @app.task(name="own", base=Fickle, shared=False)
    def own(*_args):
        pass

    mine.create("digest", task="own", trigger=MINUTELY)
    clock.advance(MINUTE)
    publisher = Publisher(app, now=clock.now)
    yield ManualBeat(dynbeat, publisher)
    publisher.close()
    app.close()


@pytest.fixture(autouse=True)
def does(monkeypatch):
    return lambda what: monkeypatch.setattr(Fickle, "does", what)


@pytest.fixture
def pass_minutes(beat, clock):
    """Advance the clock by ``minutes``, with a pass every few seconds."""

    def passes(minutes):
        for _ in range(6 * minutes):
            beat.run_until_idle()
            clock.advance(10 * SECOND)
        beat.run_until_idle()

    return passes


def newest(mine, name="digest"):
    (run,) = mine.runs(name, limit=1)
    return run


def oldest(mine):
    return mine.runs("digest", limit=100)[-1]


def test_a_declined_run_is_revoked_with_the_reason_and_never_sent_again(beat, mine, does, clock):
    does("nothing")
    beat.run_until_idle()
    does("send")
    clock.advance(timedelta(seconds=31))
    beat.run_until_idle()

    assert newest(mine).status == "revoked"
    assert "published no message of 'own'" in newest(mine).error
    assert mine.get("digest").error is None


@pytest.mark.parametrize("what", ["nothing", "raise"])
def test_a_declined_run_whose_message_is_in_the_queue_stays_sent(beat, mine, does, clock, what):
    beat.run_until_idle()
    does(what)
    clock.advance(timedelta(hours=1, minutes=1))
    beat.run_until_idle()

    assert oldest(mine).status == "sent"


def test_a_declined_run_whose_message_may_be_in_the_queue_is_not_revoked(beat, mine, does, clock):
    does("raise")
    beat.run_until_idle()
    does("nothing")
    clock.advance(timedelta(seconds=31))
    beat.run_until_idle()

    assert newest(mine).status == "sent"


class Declining(RecordingPublisher):
    """A publisher for an application that sends no run of some names."""

    declines = frozenset()

    def publish(self, batch):
        declined = {run.run_id: "already queued" for run in batch if run.name in self.declines}
        result = super().publish([run for run in batch if run.run_id not in declined])
        return replace(result, declined=declined)


def test_a_declined_run_that_waited_for_its_place_is_revoked(limited, clock):
    dynbeat = limited(owner_limits={"*": {"max_running": 1}})
    mine, worker = dynbeat.schedules.for_owner("user:42"), WorkerStub(dynbeat)
    publisher = Declining()
    beat = ManualBeat(dynbeat, publisher)
    for name in ("a", "b", "c"):
        mine.create(name, task="t", trigger=MINUTELY, max_runs=1)
    clock.advance(MINUTE)
    worker.heartbeat()
    beat.run_until_idle()
    (first,) = beat.publisher.sent
    worker.start(first)
    # Longer than dynbeat_dispatch_timeout.
    clock.advance(MINUTE)
    worker.finish(first)
    publisher.declines = {"b"}
    for _ in range(3):
        beat.run_until_idle()
        clock.advance(SECOND)

    assert [newest(mine, name).status for name in ("b", "c")] == ["revoked", "sent"]


def test_a_retry_that_another_beat_may_have_sent_is_not_revoked(dynbeat, mine, clock):
    class Slow(Declining):
        def publish(self, batch):
            clock.advance(MINUTE)
            return super().publish(batch)

    beat, worker = ManualBeat(dynbeat, Declining()), WorkerStub(dynbeat)
    mine.create("n", task="t", trigger=MINUTELY, max_runs=1, retry=Retry(max_retries=2, backoff=60))
    clock.advance(MINUTE)
    worker.heartbeat()
    beat.run_until_idle()
    (run,) = beat.publisher.sent
    worker.start(run)
    retry_at = clock.now() + MINUTE
    worker.finish(run, Status.RETRYING, retry_at=retry_at, sent_by_beat=True)
    clock.advance(MINUTE)
    worker.heartbeat()
    slow = Slow()
    slow.declines = {"n"}
    ManualBeat(dynbeat, slow).tick()

    assert newest(mine, "n").status == "sent"


def test_while_the_method_raises_for_one_schedule_the_others_are_sent(mine, does, pass_minutes):
    mine.create("bad", task="own", trigger=MINUTELY, args=["bad"])
    does("raise for bad")
    pass_minutes(5)

    assert len(mine.runs("digest", status="sent")) >= 5
    assert mine.runs("digest", status="pending") == []
    assert len(mine.runs("bad", status="pending")) == 1
    assert mine.get("bad").error is None

    does("send")
    pass_minutes(2)
    assert mine.runs("bad", status="pending") == []
    assert mine.get("bad").next_run_at == mine.get("digest").next_run_at
