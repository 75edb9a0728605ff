"""A worker writes the successes of early acknowledged messages in batches."""

import os
import signal
from datetime import timedelta

import pytest
from celery import current_task
from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from celery_dynbeat.signals import run_ended
from celery_dynbeat.store.runs import attempts
from celery_dynbeat.telemetry import events, subscribe, unsubscribe
from celery_dynbeat.worker import PoolChannel, outcome_recorder
from celery_dynbeat.worker.outcomes import Outcome
from tests.support.executing_worker import ExecutingWorker
from tests.support.waiting import wait_until

NODE_TIMEOUT = timedelta(minutes=5)
# On SQLite, each process writes its own outcomes.
pytestmark = pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)


@pytest.fixture(autouse=True)
def _long_interval(monkeypatch):
    monkeypatch.setattr(outcome_recorder, "BATCH_INTERVAL", 60)


@pytest.fixture
def worker(dynbeat, clock):
    made = ExecutingWorker(dynbeat, clock)
    made.create()
    made.task.acks_late = False
    made.outcomes.start()
    yield made
    made.outcomes.disconnect()
    made.outcomes.close()


@pytest.fixture
def waiting(worker):
    """Return runs whose ends wait for the next batch."""
    runs = [worker.send() for _ in range(4)]
    worker.consume(runs[0])
    wait_until(lambda: worker.status(runs[0]) == "succeeded", within=10)
    # Its thread may still look for more of the first batch.
    wait_until(lambda: not worker.outcomes._recorder._flush_lock.locked(), within=10)
    for run in runs[1:]:
        worker.consume(run)
    assert {worker.status(run) for run in runs[1:]} == {"running"}
    return runs[1:]


@pytest.fixture
def ended():
    heard = []
    subscribe(heard.append, events.RunEnded, key="test")
    yield heard
    unsubscribe("test", events.RunEnded)


def statuses(worker, runs):
    return [worker.status(run) for run in runs]


def test_the_first_end_after_a_pause_is_written_at_once_and_the_next_with_its_batch(
    worker, waiting, ended
):
    assert ended == []
    finished_at = worker.clock.now()
    worker.clock.advance(timedelta(hours=1))

    worker.outcomes.close()

    assert statuses(worker, waiting) == ["succeeded"] * 3
    assert {worker.mine.get_run(run.run_id).finished_at for run in waiting} == {finished_at}
    assert [each.run_id for each in ended] == [run.run_id for run in waiting]


def test_a_batch_is_written_after_the_interval(worker, monkeypatch):
    monkeypatch.setattr(outcome_recorder, "BATCH_INTERVAL", 0.3)
    runs = [worker.send() for _ in range(3)]

    for run in runs:
        worker.consume(run)

    wait_until(lambda: statuses(worker, runs) == ["succeeded"] * 3, within=10)


def test_a_worker_that_writes_too_slowly_is_not_flooded(worker, waiting, monkeypatch):
    monkeypatch.setattr(outcome_recorder, "MAX_WAITING", len(waiting))
    run = worker.send()

    worker.consume(run)

    assert worker.status(run) == "succeeded"
    assert statuses(worker, waiting) == ["running"] * 3


@pytest.mark.parametrize("end", ["late", "failed", "retry", "awaited"])
def test_an_end_that_another_process_may_wait_for_is_written_at_once(worker, end):
    worker.consume(first := worker.send())
    wait_until(lambda: worker.status(first) == "succeeded", within=10)
    # The interval has begun, in which no batch is written.
    worker.task.acks_late = end == "late"
    if end == "awaited":
        worker.mine.update("n", overlap="buffer_one")
    run = worker.send()

    worker.consume(run, {"failed": ValueError(), "retry": "retry"}.get(end))

    expected = {"failed": "failed", "retry": "retrying"}.get(end, "succeeded")
    assert worker.status(run) == expected


def test_with_a_receiver_of_the_application_nothing_is_batched(worker):
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


def test_a_second_message_of_a_run_that_waits_is_refused(worker, waiting):
    worker.consume(waiting[0])

    # The body would have taken it.
    assert worker.ends == [None]
    worker.outcomes.close()
    assert worker.mine.get_run(waiting[0].run_id).attempt == 1


def test_a_run_that_has_ended_otherwise_keeps_its_end_and_reports_none(worker, waiting, ended):
    lost = Outcome(
        run_id=waiting[0].run_id,
        attempt=1,
        worker=worker.node.name,
        status=Status.FAILED,
        at=worker.clock.now(),
    )
    worker.outcomes._recorder._write(lost, waits=True)

    worker.outcomes.close()

    assert statuses(worker, waiting) == ["failed", "succeeded", "succeeded"]
    ends = [(each.run_id, each.status) for each in ended]
    assert ends.count((waiting[0].run_id, "succeeded")) == 0
    assert ends.count((waiting[2].run_id, "succeeded")) == 1


def test_a_locked_run_delays_no_other_run_of_its_batch(worker, waiting):
    recorder, database = worker.outcomes._recorder, worker.context.database
    with Session(database.engine) as holder:
        held = select(Run.id).where(Run.id == waiting[1].run_id)
        holder.execute(held.with_for_update())

        assert recorder.flush()

        assert statuses(worker, waiting) == ["succeeded", "running", "succeeded"]
        assert recorder.has(waiting[1].run_id)
        holder.rollback()
    wait_until(lambda: recorder.flush() and worker.status(waiting[1]) == "succeeded", within=10)


def test_a_batch_that_the_database_refuses_is_written_one_by_one(worker, waiting, monkeypatch):
    def refuse(*_):
        raise ValueError

    monkeypatch.setattr(attempts, "succeed", refuse)

    worker.outcomes.close()

    assert statuses(worker, waiting) == ["succeeded"] * 3


def test_an_outage_keeps_the_batch_and_says_so_once(worker, waiting, monkeypatch, caplog):
    def fail(*_, **__):
        raise OperationalError("", None, ConnectionError())

    recorder = worker.outcomes._recorder
    with monkeypatch.context() as outage:
        outage.setattr(attempts, "succeed", fail)
        assert not recorder.flush()
        assert not recorder.flush()

    names = [getattr(record, "event", None) for record in caplog.records]
    assert names.count("outcome_buffered") == 1
    assert recorder.flush()
    assert statuses(worker, waiting) == ["succeeded"] * 3


def test_pool_processes_leave_their_successes_to_the_main_process(dynbeat, clock):
    channel = PoolChannel()
    worker = ExecutingWorker(dynbeat, clock, channel=channel)
    worker.create()
    worker.task.acks_late = False
    runs = [worker.send() for _ in range(3)]
    dynbeat.context.database.dispose()
    child = os.fork()
    if not child:
        worker.outcomes.on_process_init()
        for run in runs:
            worker.consume(run)
        # They are in the channel, so the main process writes them.
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert statuses(worker, runs) == ["running"] * 3

    worker.outcomes.disconnect()
    worker.outcomes.close()

    assert statuses(worker, runs) == ["succeeded"] * 3


def test_a_main_process_that_is_killed_leaves_runs_that_beat_finds(worker, dynbeat):
    """The bodies ended and the commit is missing: the last interval before the kill."""
    runs = [worker.send() for _ in range(3)]
    dynbeat.context.database.dispose()
    child = os.fork()
    if not child:
        # The writer thread belongs to the parent.
        worker.outcomes._recorder._start_thread = lambda: None
        for run in runs:
            worker.consume(run)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert statuses(worker, runs) == ["running"] * 3

    worker.clock.advance(NODE_TIMEOUT)
    worker.beat.run_until_idle()

    assert statuses(worker, runs) == ["lost"] * 3
