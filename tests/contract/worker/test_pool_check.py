"""A living worker ends, once, each run whose row names it and that it does not execute."""

import os
from datetime import timedelta

import pytest
from celery.exceptions import Retry, TimeLimitExceeded

from celery_dynbeat.broker import HEADER_ATTEMPT, run_headers
from celery_dynbeat.common.states import Status
from celery_dynbeat.store.runs.unfinished import MAX_ATTEMPTS
from celery_dynbeat.worker.pool_check import PoolCheck, PoolState
from celery_dynbeat.worker.signal_handlers import OutcomeSignals
from celery_dynbeat.worker.task_guard import TaskGuard
from tests.support.applications import MINUTELY, execute
from tests.support.suites import each_database
from tests.support.worker_stub import WorkerStub

NODE = "w1@test"
#: Above the largest process id of the kernel.
NO_PID = 10_000_000
INTERVAL = timedelta(seconds=20)
MINUTE = timedelta(minutes=1)


class Results:
    """A result backend with the results in ``stored``."""

    def __init__(self):
        self.stored = set()

    def fetch(self, run_ids, *, timeout):
        """Do nothing: each result is available at once."""

    def succeeded(self, run_id):
        return run_id in self.stored

    def retain(self, run_ids):
        """Do nothing: no result is dropped."""


@pytest.fixture
def worker(dynbeat):
    return WorkerStub(dynbeat, name=NODE)


@pytest.fixture
def held():
    """Return the ids of the runs that the pool executes."""
    return set()


@pytest.fixture
def results():
    return Results()


@pytest.fixture
def check(dynbeat, held, results):
    """Return a function that makes checks; by default as many as are needed to end a run."""
    pool_check = PoolCheck(
        dynbeat.context,
        NODE,
        outcomes=OutcomeSignals(dynbeat.context, NODE),
        # This process executes the runs.
        pool=lambda: PoolState(held, [os.getpid()] if held else []),
        is_handling=lambda _: False,
        results=results,
        interval=INTERVAL,
    )

    def check(times=2):
        for _ in range(times):
            pool_check.check()

    return check


@pytest.fixture
def begun(mine, clock, beat, worker):
    """Return a function that returns a run that the worker has started."""

    def begun(**policies):
        mine.create("n", task="t", trigger=MINUTELY, **policies)
        clock.advance(MINUTE)
        worker.heartbeat()
        beat.run_until_idle()
        run = beat.publisher.sent[-1]
        assert worker.start(run)
        # No other fire time is due.
        mine.update("n", max_runs=1)
        clock.advance(timedelta(seconds=1))
        return run

    return begun


def status_of(mine, run):
    return next(found.status for found in mine.runs() if found.id == run.run_id)


def test_a_run_that_the_pool_does_not_execute_is_lost(mine, check, begun):
    run = begun()

    check(1)
    assert status_of(mine, run) == "running"
    check(1)

    (found,) = mine.runs()
    assert (found.status, found.error) == ("lost", "its pool process is gone")


def test_a_run_that_the_pool_executes_stays_running(mine, check, held, begun):
    run = begun()
    held.add(run.run_id)

    check(5)

    assert status_of(mine, run) == "running"


def test_a_run_of_another_worker_stays_unchanged(dynbeat, mine, check, begun):
    run = begun()
    execute(dynbeat, "UPDATE dynbeat_run SET worker = 'w2@test'")

    check(5)

    assert status_of(mine, run) == "running"


def test_a_run_whose_message_was_redelivered_is_sent_again_with_any_on_lost(
    dynbeat, beat, check, begun
):
    run = begun()
    other = WorkerStub(dynbeat, name="w2@test")
    assert not other.start(run, redelivered=True)

    check()
    beat.run_until_idle()

    assert other.start(beat.publisher.sent[-1])


@pytest.mark.parametrize("message", [True, False])
def test_a_run_in_its_last_allowed_attempt_is_lost(dynbeat, mine, check, begun, message):
    run = begun(on_lost="rerun")
    noted = MAX_ATTEMPTS if message else None
    execute(
        dynbeat,
        "UPDATE dynbeat_run SET attempt = :number, redelivered_attempt = :noted",
        number=MAX_ATTEMPTS,
        noted=noted,
    )

    check()

    assert status_of(mine, run) == "lost"


def test_a_run_whose_result_was_stored_has_succeeded(mine, check, begun, results):
    run = begun(on_lost="rerun")
    results.stored.add(run.run_id)

    check()

    (found,) = mine.runs()
    assert (found.status, found.attempt) == ("succeeded", 1)
    assert found.error == "its pool process died after the result was stored"


@each_database
def test_the_buffered_run_of_the_schedule_is_then_sent_at_once(
    mine, clock, beat, worker, check, results
):
    mine.create("n", task="t", trigger=MINUTELY, overlap="buffer_one")
    clock.advance(MINUTE)
    worker.heartbeat()
    beat.run_until_idle()
    first = beat.publisher.sent[-1]
    worker.start(first)
    clock.advance(MINUTE)
    worker.heartbeat()
    beat.run_until_idle()
    assert len(beat.publisher.sent) == 1
    results.stored.add(first.run_id)

    check()
    beat.run_until_idle()

    assert len(beat.publisher.sent) == 2


def test_a_run_that_ends_between_two_checks_keeps_its_status(mine, check, begun, worker):
    run = begun()
    check(1)

    worker.finish(run, Status.FAILED)
    check(1)

    assert status_of(mine, run) == "failed"


def test_an_attempt_that_started_between_two_checks_is_not_ended(dynbeat, mine, check, begun):
    run = begun()
    check(1)

    execute(dynbeat, "UPDATE dynbeat_run SET attempt = 2")
    check(1)

    assert status_of(mine, run) == "running"


@pytest.fixture
def task(dynbeat):
    """Return the guarded task of the runs."""

    def body():
        """Do nothing."""

    made = dynbeat.context.app.task(body, name="t", shared=False)
    TaskGuard(dynbeat.context, NODE, OutcomeSignals(dynbeat.context, NODE)).wrap(made)
    return made


def request_of(task, run):
    """Return the request of a run in Celery's main process, which never executed it."""
    task.push_request(id=run.run_id, headers=run_headers(run), retries=0, delivery_info={})
    return task.request_stack.top


def followed(task, request):
    """Return the attempt that the retry from the main process names."""
    signed = task.signature_from_request(request, retries=1, countdown=0)
    return signed.options["headers"][HEADER_ATTEMPT]


def test_a_retry_from_the_main_process_follows_the_attempt_that_died(dynbeat, begun, task):
    run = begun()
    # Started by a redelivered message; no process has this id.
    execute(dynbeat, f"UPDATE dynbeat_run SET attempt = 3, worker_pid = {NO_PID}")

    assert followed(task, request_of(task, run)) == 3


@pytest.mark.parametrize("where", ["worker = 'w2@test'", "status = 'succeeded'"])
def test_a_retry_of_an_attempt_that_has_ended_does_not_follow_a_later_attempt(
    dynbeat, begun, task, where
):
    run = begun()
    execute(dynbeat, f"UPDATE dynbeat_run SET attempt = 3, worker_pid = {NO_PID}, {where}")

    assert followed(task, request_of(task, run)) == 1


def test_a_retry_from_the_main_process_is_recorded(dynbeat, mine, begun, task):
    run = begun()
    execute(dynbeat, f"UPDATE dynbeat_run SET worker_pid = {NO_PID}")
    request = request_of(task, run)
    followed(task, request)

    OutcomeSignals(dynbeat.context, NODE).on_retry(task, request, reason=Retry(when=0))

    assert status_of(mine, run) == "retrying"


def test_the_retry_signal_of_a_cancelled_task_without_a_message_is_ignored(
    dynbeat, mine, begun, task
):
    run = begun()

    OutcomeSignals(dynbeat.context, NODE).on_retry(task, request_of(task, run), einfo=None)

    assert status_of(mine, run) == "running"


def test_a_time_limit_that_requeues_the_message_ends_no_run(dynbeat, mine, begun, task):
    run = begun()
    task.acks_late, task.acks_on_timeout = True, False

    OutcomeSignals(dynbeat.context, NODE).on_failure(task, run.run_id, TimeLimitExceeded(2), None)

    assert status_of(mine, run) == "running"
