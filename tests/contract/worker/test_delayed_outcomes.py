"""A worker with a backlog delays the end of a run until it starts the next run."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from celery import current_task
from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from celery_dynbeat.db.models import Run
from celery_dynbeat.signals import run_ended
from celery_dynbeat.store.runs import attempts
from celery_dynbeat.telemetry import events, subscribe, unsubscribe
from celery_dynbeat.worker import outcome_recorder
from tests.support.executing_worker import ExecutingWorker
from tests.support.lock_waits import wait_for_lock_wait
from tests.support.waiting import wait_until

NODE_TIMEOUT = timedelta(minutes=5)


@pytest.fixture(autouse=True)
def _long_delay(monkeypatch):
    monkeypatch.setattr(outcome_recorder, "OUTCOME_DELAY", 60)


@pytest.fixture
def worker(dynbeat, clock):
    made = ExecutingWorker(dynbeat, clock)
    made.create()
    yield made
    made.outcomes.disconnect()
    made.outcomes.close()


@pytest.fixture
def delayed(worker):
    """Return a run whose end the worker delays."""
    before, run = worker.send(), worker.send()
    worker.consume(before)
    worker.consume(run)
    assert worker.status(before) == "succeeded"
    return run


@pytest.fixture
def ended():
    heard = []
    subscribe(heard.append, events.RunEnded, key="test")
    yield heard
    unsubscribe("test", events.RunEnded)


def test_the_start_of_the_next_run_writes_the_end_of_the_run_before(worker, delayed, monkeypatch):
    calls = []
    both = attempts.finish_and_start
    monkeypatch.setattr(
        attempts, "finish_and_start", lambda *args, **kw: calls.append(1) or both(*args, **kw)
    )
    run = worker.send()
    assert worker.status(delayed) == "running"

    worker.consume(run)

    assert (calls, worker.status(delayed), worker.status(run)) == ([1], "succeeded", "running")
    assert worker.mine.get_run(delayed.run_id).finished_at <= worker.clock.now()


def test_without_a_next_run_it_is_written_soon(worker, monkeypatch):
    monkeypatch.setattr(outcome_recorder, "OUTCOME_DELAY", 0.3)
    for run in (first := worker.send(), second := worker.send()):
        worker.consume(run)

    assert worker.status(first) == "succeeded"
    wait_until(lambda: worker.status(second) == "succeeded", within=10)


def test_the_end_of_a_process_writes_it(worker, delayed):
    worker.outcomes.on_process_shutdown()

    assert worker.status(delayed) == "succeeded"


def test_an_idle_worker_delays_nothing(worker, monkeypatch):
    monkeypatch.setattr(outcome_recorder, "OUTCOME_DELAY", 0)
    for run in (worker.send(), worker.send()):
        worker.consume(run)
        assert worker.status(run) == "succeeded"


def test_a_failure_is_not_delayed(worker, delayed):
    run = worker.send()

    worker.consume(run, ValueError())

    assert (worker.status(delayed), worker.status(run)) == ("succeeded", "failed")


@pytest.mark.usefixtures("delayed")
def test_a_run_that_another_may_wait_for_is_not_delayed(worker):
    worker.mine.update("n", overlap="buffer_one")
    run = worker.send()

    worker.consume(run)

    assert worker.status(run) == "succeeded"


def test_its_event_follows_the_commit(worker, ended):
    for run in (first := worker.send(), second := worker.send()):
        worker.consume(run)
    assert [each.run_id for each in ended] == [first.run_id]

    worker.consume(third := worker.send())

    assert [each.run_id for each in ended] == [first.run_id, second.run_id]
    worker.outcomes.close()
    assert [each.run_id for each in ended][2:] == [third.run_id]


def test_with_a_receiver_of_the_application_nothing_is_delayed(worker):
    tasks = []

    def receive(**_):
        tasks.append(current_task.request.id)

    run_ended.connect(receive)
    try:
        runs = [worker.send() for _ in range(3)]
        for run in runs:
            worker.consume(run)
            assert worker.status(run) == "succeeded"
    finally:
        run_ended.disconnect(receive)

    # It may ask for the present task.
    assert tasks == [run.run_id for run in runs]


def test_a_process_that_ends_hands_over_what_its_thread_cannot_write(worker, delayed, monkeypatch):
    def hang(*_):
        released.wait()
        raise OperationalError("", None, ConnectionError())

    released, sent, recorder = threading.Event(), [], worker.outcomes._recorder
    monkeypatch.setattr(recorder, "_write", hang)
    monkeypatch.setattr(outcome_recorder, "STOP_TIMEOUT", 0.1)
    [waiting] = recorder._delayed.values()
    waiting.until = 0
    thread = threading.Thread(target=recorder._write_delayed, args=(waiting,))
    monkeypatch.setattr(recorder, "_delay_thread", thread)
    thread.start()

    recorder.hand_over(lambda outcome: sent.append(outcome.run_id) or True)

    assert sent == [delayed.run_id]
    released.set()
    thread.join()
    monkeypatch.undo()


def test_an_outcome_whose_start_was_interrupted_is_written(worker, delayed, monkeypatch):
    recorder = worker.outcomes._recorder
    monkeypatch.setattr(outcome_recorder, "START_TIMEOUT", -120)

    # A soft time limit between the take and the write.
    recorder._take_delayed()
    monkeypatch.setattr(outcome_recorder, "OUTCOME_DELAY", 0.05)
    # The present one waits for a minute.
    monkeypatch.setattr(recorder, "_delay_thread", None)
    recorder._delay(replace(recorder._delayed[delayed.run_id].outcome, run_id="other"))

    wait_until(lambda: worker.status(delayed) == "succeeded", within=10)


def test_a_second_message_of_the_run_is_refused(worker, delayed):
    worker.consume(delayed)

    # The body would have taken it.
    assert worker.ends == [None]
    assert worker.status(delayed) == "succeeded"
    assert worker.mine.get_run(delayed.run_id).attempt == 1


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_start_that_waits_for_its_row_locks_no_other_run(worker, delayed):
    # The beat that is confirming the run may wait for the other row, and that would be a deadlock.
    run = worker.send()
    database = worker.context.database
    with Session(database.engine) as holder, ThreadPoolExecutor() as pool:
        holder.execute(select(Run.id).where(Run.id == run.run_id).with_for_update())
        consumed = pool.submit(worker.consume, run)
        wait_for_lock_wait(database.engine)

        other = select(Run.id).where(Run.id == delayed.run_id)
        holder.execute(other.with_for_update(nowait=True))
        holder.rollback()
        consumed.result(timeout=10)

    assert worker.status(delayed) == "succeeded"


def test_a_start_that_fails_loses_neither(worker, delayed, monkeypatch):
    def fail(*_, **__):
        raise OperationalError("", None, ConnectionError())

    monkeypatch.setattr(attempts, "finish_and_start", fail)
    run, sent = worker.send(), []
    monkeypatch.setattr("celery.app.task.Task.apply_async", lambda *_, **__: sent.append(1))

    worker.consume(run)

    # The guard published a copy of the message, and a thread writes the end.
    assert sent == [1]
    assert worker.status(run) == "sent"
    wait_until(lambda: worker.status(delayed) == "succeeded", within=30)


def test_a_worker_that_is_killed_leaves_the_run_running_and_beat_finds_it(worker, dynbeat):
    """The body ended and the commit is missing, as after any kill between the two."""
    runs = [worker.send() for _ in range(3)]
    dynbeat.context.database.dispose()
    child = os.fork()
    if not child:
        for run in runs:
            worker.consume(run)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert [worker.status(run) for run in runs] == ["succeeded", "succeeded", "running"]

    worker.clock.advance(NODE_TIMEOUT)
    worker.beat.run_until_idle()

    assert [worker.status(run) for run in runs] == ["succeeded", "succeeded", "lost"]
