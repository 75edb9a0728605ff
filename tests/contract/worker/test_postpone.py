"""A task that finds it is the wrong time postpones its run, without an attempt that counts."""

import pickle
from datetime import datetime, timedelta
from functools import partial

import pytest

from celery_dynbeat import InvalidArgumentError, Once, Retry, current_run
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.insights.explain.causes import Cause
from celery_dynbeat.insights.explain.reading import explain
from celery_dynbeat.insights.explain.runs import explain_run
from celery_dynbeat.store import nodes
from celery_dynbeat.store.runs.unfinished import MAX_ATTEMPTS
from celery_dynbeat.testing import ManualBeat
from celery_dynbeat.worker import PostponeRun
from tests.support.applications import START, execute
from tests.support.suites import each_database
from tests.support.worker_stub import WorkerStub

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
DUE = START + MINUTE
OWNER = "user:42"


class Site:
    """An application whose task "t" postpones its run in turn by ``outcomes``; None returns."""

    def __init__(self, dynbeat, clock):
        self.dynbeat, self.clock = dynbeat, clock
        self.mine = dynbeat.schedules.for_owner(OWNER)
        self.beat = ManualBeat(dynbeat, run_tasks=True)
        self.outcomes, self.started = [], []

        def body():
            self.body()

        dynbeat.app.task(name="t", shared=False)(body)

    def body(self):
        run = current_run()
        self.started.append((self.clock.now(), run.schedule, run.attempt))
        until = self.outcomes.pop(0) if self.outcomes else None
        if isinstance(until, Exception):
            raise until
        if until is not None:
            run.postpone(until=until)

    def create(self, name="n", **fields):
        self.mine.create(name, task="t", trigger=Once(DUE), **fields)

    def pass_to(self, at):
        self.clock.move_to(at)
        self.beat.run_until_idle()

    def run(self, name="n"):
        return self.mine.runs(name).items[0]


@pytest.fixture
def site(limited, clock):
    def make(**settings):
        return Site(limited(**settings), clock)

    return make


@pytest.mark.parametrize("until", [HOUR, DUE + HOUR], ids=["timedelta", "datetime"])
def test_the_run_waits_and_then_starts_again_without_a_retry(site, until):
    made = site()
    made.create(retry=Retry(max_retries=1))
    made.outcomes += [until, ValueError("no")]

    made.pass_to(DUE)
    waiting = made.run()
    for at in (DUE + MINUTE, DUE + HOUR - timedelta(seconds=1), DUE + HOUR, DUE + 2 * HOUR):
        made.pass_to(at)

    assert (waiting.status, waiting.waited_for, waiting.is_waiting) == (
        "pending",
        "postponed",
        True,
    )
    assert (waiting.retry_at, waiting.started_at, waiting.error) == (DUE + HOUR, None, None)
    assert [(at, attempt) for at, _, attempt in made.started] == [
        (DUE, 1),
        (DUE + HOUR, 2),
        (DUE + 2 * HOUR, 3),
    ]
    # The one retry that the policy allows is used by the failure alone.
    ended = made.run()
    assert (ended.status, ended.retries) == ("succeeded", 1)
    assert len(ended.earlier_errors) == 1


def test_the_pages_and_explain_say_what_the_run_waits_for(site):
    made = site()
    made.create()
    made.outcomes.append(HOUR)
    made.pass_to(DUE)
    heartbeat = nodes.NodeHeartbeat(
        kind=NodeKind.BEAT, name="b", pid=1, seen_at=DUE, progressed_at=DUE
    )
    made.dynbeat.context.database.run(partial(nodes.register, heartbeat=heartbeat, started_at=DUE))

    found = explain(made.dynbeat.context, owner=OWNER, name="n")

    assert found.cause == Cause.POSTPONED
    assert "until 2026" in explain_run(made.run(), now=made.clock.now())
    assert "because its task postponed it" in found.sentence


@pytest.mark.parametrize(
    "until",
    [
        timedelta(0),
        -HOUR,
        timedelta.min,
        timedelta.max,
        timedelta(days=30, seconds=1),
        DUE,
        datetime(2026, 12, 1, 7),  # noqa: DTZ001
        datetime.max.replace(tzinfo=START.tzinfo),
        "07:00",
        None,
    ],
)
def test_an_instant_that_is_no_instant_of_the_next_30_days_is_refused(site, until):
    made = site()
    errors = []

    def body():
        with pytest.raises(InvalidArgumentError) as caught:
            current_run().postpone(until=until)
        errors.append(caught.value)

    made.dynbeat.app.task(name="refused", shared=False)(body)
    made.mine.create("n", task="refused", trigger=Once(DUE))
    made.pass_to(DUE)

    assert [error.field for error in errors] == ["until"]
    assert "30 days" in str(errors[0])
    assert made.run().status == "succeeded"


def test_a_run_that_is_postponed_by_no_time_does_not_start_in_a_loop(site):
    made = site()
    made.create()
    made.outcomes += [timedelta(microseconds=1)] * 50

    made.pass_to(DUE)

    assert len(made.started) == 1


def test_a_run_that_failed_before_it_was_postponed_does_not_expire(site):
    made = site()
    made.create(expires_after=30 * MINUTE, retry=Retry(max_retries=1, backoff=1))
    made.outcomes += [ValueError("no"), HOUR]

    for at in (DUE, DUE + MINUTE, DUE + 2 * HOUR):
        made.pass_to(at)

    assert (made.run().status, len(made.started)) == ("succeeded", 3)


@pytest.mark.parametrize("redelivered", [False, True])
def test_another_message_of_the_postponed_attempt_does_not_start_the_run(
    dynbeat, clock, beat, redelivered
):
    dynbeat.schedules.for_owner(OWNER).create("n", task="t", trigger=Once(DUE))
    clock.move_to(DUE)
    beat.run_until_idle()
    worker = WorkerStub(dynbeat)
    (message,) = beat.publisher.sent
    assert worker.start(message)
    worker.postpone(message, until=DUE + HOUR)

    assert not worker.start(message, redelivered=redelivered)
    clock.move_to(DUE + HOUR)
    worker.heartbeat()
    beat.run_until_idle()
    again = beat.publisher.sent[1]
    assert (again.attempt, again.retries) == (1, 0)
    assert worker.start(again)
    assert not worker.start(message, redelivered=redelivered)


@each_database
def test_postponements_use_up_no_attempt_of_a_run_that_is_sent_again_after_a_crash(
    dynbeat, clock, beat
):
    mine = dynbeat.schedules.for_owner(OWNER)
    mine.create("n", task="t", trigger=Once(DUE), on_lost="rerun")
    clock.move_to(DUE)
    for number in range(MAX_ATTEMPTS):
        beat.run_until_idle()
        worker = WorkerStub(dynbeat, f"w{number}")
        assert worker.start(beat.publisher.sent[-1])
        if number < MAX_ATTEMPTS - 1:
            worker.postpone(beat.publisher.sent[-1], until=clock.now() + HOUR)
        clock.advance(HOUR)

    beat.run_until_idle()

    (run,) = mine.runs("n").items
    assert (run.status, run.attempt) == ("sent", MAX_ATTEMPTS)
    assert len(beat.publisher.sent) == MAX_ATTEMPTS + 1


def test_a_postponed_run_whose_send_beat_did_not_confirm_is_not_sent_early(dynbeat, clock, beat):
    mine = dynbeat.schedules.for_owner(OWNER)
    mine.create("n", task="t", trigger=Once(DUE))
    clock.move_to(DUE)
    beat.run_until_idle()
    (message,) = beat.publisher.sent
    execute(dynbeat, "UPDATE dynbeat_run SET status = 'pending', sent_at = NULL")
    worker = WorkerStub(dynbeat)
    worker.start(message)
    worker.postpone(message, until=DUE + HOUR)

    # Another run of the schedule ends, and the run that is buffered behind it is released.
    mine.update("n", overlap="buffer_one")
    mine.run_now("n")
    beat.run_until_idle()
    other = beat.publisher.sent[1]
    worker.start(other)
    worker.finish(other)
    clock.advance(MINUTE)
    beat.run_until_idle()

    assert len(beat.publisher.sent) == 2


def test_the_exception_is_pickled_like_the_exceptions_of_celery():
    copy = pickle.loads(pickle.dumps(PostponeRun(DUE)))  # noqa: S301 - of this test

    assert (copy.until, str(copy)) == (DUE, str(PostponeRun(DUE)))
