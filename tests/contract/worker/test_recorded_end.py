"""A process handles a run until its outcome is recorded, not only until its body returns."""

import celery
import pytest
from celery.app.trace import build_tracer

from tests.support.executing_worker import ExecutingWorker
from tests.support.waiting import wait_until


@pytest.fixture
def worker(dynbeat, clock):
    made = ExecutingWorker(dynbeat, clock)
    made.create()
    yield made
    made.outcomes.disconnect()
    made.outcomes.close()


def no_longer_handled(worker, run):
    """Wait: a thread of the recorder forgets the run after it has written the end."""
    wait_until(lambda: not worker.guard.is_handling(run.run_id), within=10)


def test_a_message_redelivered_while_a_hook_runs_after_the_body_starts_nothing(worker):
    run = worker.send()

    def redeliver():
        # Two copies, as after two lost connections to the broker.
        for _ in range(2):
            worker.consume(run, redelivered=True)
        assert worker.guard.is_handling(run.run_id)

    worker.on_success = redeliver
    worker.consume(run)

    assert (worker.starts, worker.status(run)) == (1, "succeeded")
    no_longer_handled(worker, run)


@pytest.mark.filterwarnings("ignore:Exception raised outside body:RuntimeWarning")
def test_a_run_whose_hook_fails_after_the_body_ends_as_celery_ends_it(worker):
    def fail():
        raise ValueError("no mail server")

    worker.on_success = fail
    run = worker.send()
    worker.consume(run)

    ended = worker.mine.get_run(run.run_id)
    # Celery 5.7 logs the error of the hook, and the task has succeeded.
    is_logged = celery.VERSION[:2] >= (5, 7)
    expected = ("succeeded", None) if is_logged else ("failed", "ValueError: no mail server")
    assert (ended.status, ended.error) == expected
    no_longer_handled(worker, run)


class OddError(BaseException):
    """An error for which Celery sends no signal."""


def test_a_run_whose_body_raises_a_base_exception_fails(worker):
    run = worker.send()

    with pytest.raises(OddError):
        worker.consume(run, OddError("odd"))

    no_longer_handled(worker, run)
    ended = worker.mine.get_run(run.run_id)
    assert (ended.status, ended.error) == ("failed", "OddError: odd")


@pytest.mark.parametrize("end", [None, "retry", ValueError("wrong"), KeyError])
def test_no_run_is_handled_after_its_outcome_is_recorded(worker, end):
    run = worker.send()
    worker.consume(run, end)

    no_longer_handled(worker, run)


def test_a_run_of_a_coroutine_function_that_nothing_awaits_fails(dynbeat, clock):
    worker = ExecutingWorker(dynbeat, clock)

    dynbeat.app.tasks.unregister("t")

    @dynbeat.app.task(name="t", shared=False, ignore_result=True)
    async def task():
        pytest.fail("nothing awaits it")

    worker.guard.wrap(task)
    worker.trace = build_tracer("t", task, app=dynbeat.app)
    worker.create()
    try:
        run = worker.send()
        worker.consume(run)
    finally:
        worker.outcomes.disconnect()
        worker.outcomes.close()

    ended = worker.mine.get_run(run.run_id)
    assert ended.status == "failed"
    assert "'t' is an `async def` function" in ended.error
