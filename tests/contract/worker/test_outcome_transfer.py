"""A pool process sends what it does not write to the main process."""

import os
import signal
from datetime import UTC, datetime

import pytest

from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.engine import Database
from celery_dynbeat.telemetry import logs
from celery_dynbeat.worker import PoolChannel, outcome_recorder
from celery_dynbeat.worker.outcome_recorder import Recorder
from celery_dynbeat.worker.outcomes import Outcome
from tests.support.waiting import wait_until

NOW = datetime(2026, 11, 22, 9, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _logs():
    logs.connect()


@pytest.fixture
def channel():
    created = PoolChannel()
    yield created
    created.close()


@pytest.fixture
def recorder():
    # SQLite fails in a missing folder, like an unreachable server.
    created = Recorder(
        Database("sqlite:////nowhere/at/all.sqlite3"),
        settings=Settings(),
        notify=lambda _session: None,
    )
    yield created
    created.close()


def ended(run_id="run", **details):
    details = {"status": Status.FAILED, "at": NOW, **details}
    return Outcome(run_id=run_id, attempt=1, worker="w", **details)


def in_a_child(work):
    """Run ``work`` in a forked process and return its wait status."""
    pid = os.fork()
    if not pid:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def test_the_outcomes_of_a_child_arrive_whole_and_in_order(channel):
    outcomes = [ended(str(n), error="x" * 1_000, traceback="\U0001f600" * 8_000) for n in range(3)]

    def work():
        channel.close_receiver()
        assert all(channel.send(outcome) for outcome in outcomes)

    assert in_a_child(work) == 0
    assert channel.receive() == outcomes


def test_a_child_that_is_killed_while_it_sends_leaves_whole_messages_only(channel):
    def work():
        channel.send(ended("first"))
        # No process reads, so the buffer is full before the loop ends.
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        while channel.send(ended("second", traceback="x" * 8_000)):
            pass

    assert os.WTERMSIG(in_a_child(work)) == signal.SIGKILL
    found = channel.receive()
    assert found[0] == ended("first")
    assert {outcome.traceback for outcome in found[1:]} == {"x" * 8_000}

    in_a_child(lambda: channel.send(ended("third")))
    assert channel.receive() == [ended("third")]


def test_a_send_to_a_dead_main_process_returns_false(channel):
    channel.close_receiver()

    assert channel.send(ended()) is False


def in_pool_process(channel):
    return Recorder(
        Database("sqlite:////nowhere/at/all.sqlite3"),
        settings=Settings(),
        notify=lambda _session: None,
        channel=channel,
        is_pool_process=True,
    )


def test_what_a_pool_process_cannot_write_goes_to_the_main_process(channel, caplog):
    recorder = in_pool_process(channel)

    recorder.record(ended("one"))
    recorder.record(ended("two"))

    assert [outcome.run_id for outcome in channel.receive()] == ["one", "two"]
    assert recorder.has("one")
    events = [getattr(record, "event", None) for record in caplog.records]
    assert events == ["outcome_buffered"] * 2


def test_an_outage_fills_the_buffer_of_the_main_process_and_not_the_socket(channel, caplog):
    recorder = Recorder(
        Database("sqlite:////nowhere/at/all.sqlite3"),
        settings=Settings(),
        notify=lambda _session: None,
        channel=channel,
    )
    recorder.start()
    sender = in_pool_process(channel)

    # The socket alone would hold a tenth of them.
    for number in range(400):
        (recorder if number % 4 else sender).record(ended(str(number), traceback="t" * 8_000))

    wait_until(lambda: recorder.has("399") and len(recorder._buffered) == 400, within=10)
    events = {getattr(record, "event", None) for record in caplog.records}
    assert "outcome_dropped" not in events
    recorder.close()


def test_an_outcome_that_the_main_process_does_not_receive_is_logged_as_dropped(channel, caplog):
    recorder = in_pool_process(channel)
    channel.close_receiver()

    recorder.record(ended("two"))

    (dropped,) = [r for r in caplog.records if getattr(r, "event", None) == "outcome_dropped"]
    assert "1 outcomes of runs dropped" in dropped.getMessage()
    assert "(two)" in dropped.getMessage()


def test_buffered_text_is_bounded_and_no_outcome_is_dropped_for_it(recorder, monkeypatch):
    monkeypatch.setattr(outcome_recorder, "MAX_BUFFERED_CHARS", 20_000)

    for number in range(10):
        recorder.record(ended(str(number), error="e" * 5_000, traceback="t" * 100_000))

    buffered = list(recorder._buffered.values())
    assert [outcome.run_id for outcome in buffered] == [str(number) for number in range(10)]
    assert sum(len(outcome.error) + len(outcome.traceback or "") for outcome in buffered) < 20_000
    assert buffered[0].traceback is not None
    assert (buffered[-1].traceback, len(buffered[-1].error)) == (None, 100)
