"""What a pool process keeps when it ends, in the hands of the main process."""

import logging
import os
import signal
from datetime import UTC, datetime

import pytest

from celery_dynbeat.common.run_states import Status
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.engine import Database
from celery_dynbeat.worker import outcome_recorder
from celery_dynbeat.worker.outcome_recorder import Outcome, Recorder
from celery_dynbeat.worker.pool_channel import PoolChannel

NOW = datetime(2026, 11, 22, 9, tzinfo=UTC)


@pytest.fixture
def channel():
    made = PoolChannel()
    yield made
    made.close()


@pytest.fixture
def keeper():
    # A folder that does not exist: SQLite answers like a server that is away.
    made = Recorder(
        Database("sqlite:////nowhere/at/all.sqlite3"),
        settings=Settings(),
        notify=lambda _session: None,
    )
    yield made
    made.close()


def ended(run_id="run", **details):
    details = {"status": Status.FAILED, "at": NOW, **details}
    return Outcome(run_id=run_id, attempt=1, worker="w", **details)


def in_a_child(work):
    """Run ``work`` in a forked process, and return how that ended."""
    pid = os.fork()
    if not pid:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def test_what_a_child_sends_arrives_whole_and_in_order(channel):
    outcomes = [ended(str(n), error="x" * 1_000, traceback="\U0001f600" * 8_000) for n in range(3)]

    def work():
        channel.close_receiver()
        assert all(channel.send(outcome) for outcome in outcomes)

    assert in_a_child(work) == 0
    assert channel.receive() == outcomes


def test_a_child_that_is_killed_while_it_sends_leaves_whole_messages_only(channel):
    def work():
        channel.send(ended("first"))
        # The buffer is full in the middle of it, and no process reads.
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


def test_a_main_process_that_is_gone_is_noticed(channel):
    channel.close_receiver()

    assert channel.send(ended()) is False


def test_what_is_handed_over_is_not_kept(keeper, channel, caplog):
    caplog.set_level(logging.INFO)
    keeper.record(ended("one"))
    keeper.record(ended("two"))

    keeper.hand_over(channel.send)
    keeper.close()

    assert [outcome.run_id for outcome in channel.receive()] == ["one", "two"]
    events = [getattr(record, "event", None) for record in caplog.records]
    assert "outcomes_handed_over" in events
    assert "outcome_dropped" not in events


def test_what_the_main_process_does_not_take_is_dropped_by_name(keeper, caplog):
    keeper.record(ended("one"))
    keeper.record(ended("two"))

    keeper.hand_over(lambda outcome: outcome.run_id == "one")
    keeper.close()

    (dropped,) = [r for r in caplog.records if getattr(r, "event", None) == "outcome_dropped"]
    assert "1 outcomes of runs dropped" in dropped.getMessage()
    assert "(two)" in dropped.getMessage()


def test_kept_text_is_bounded_and_no_outcome_is_dropped_for_it(keeper, monkeypatch):
    monkeypatch.setattr(outcome_recorder, "MAX_BUFFERED_CHARS", 20_000)

    for number in range(10):
        keeper.record(ended(str(number), error="e" * 5_000, traceback="t" * 100_000))

    kept = list(keeper._buffered)
    assert [outcome.run_id for outcome in kept] == [str(number) for number in range(10)]
    assert sum(len(outcome.error) + len(outcome.traceback or "") for outcome in kept) < 20_000
    assert kept[0].traceback is not None
    assert (kept[-1].traceback, len(kept[-1].error)) == (None, 100)
