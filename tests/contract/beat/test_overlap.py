"""The overlap policies: a run comes due while the previous run is unfinished."""

from datetime import timedelta

import pytest

from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, START
from tests.support.suites import each_database
from tests.support.worker_stub import WorkerStub

MINUTE = timedelta(minutes=1)


@pytest.fixture
def worker(dynbeat):
    return WorkerStub(dynbeat)


def kept(mine):
    """Return the history as (minute, status), oldest first."""
    return [((run.fire_at - START) / MINUTE, run.status) for run in reversed(mine.runs(limit=99))]


def reason(mine, minute):
    return next(run.error for run in mine.runs(limit=99) if run.fire_at == START + minute * MINUTE)


@pytest.fixture
def pass_minutes(clock, beat, worker):
    """Give a function that advances the clock by minutes, with a running beat and a live worker."""

    def pass_minutes(count, beat=beat):
        for _ in range(count):
            clock.advance(MINUTE)
            worker.heartbeat()
            beat.run_until_idle()

    return pass_minutes


def test_a_run_that_runs_for_longer_than_max_run_time_does_not_count(
    mine, sent, worker, pass_minutes
):
    mine.create("n", task="t", trigger=MINUTELY, overlap="skip", max_run_time=150)
    pass_minutes(1)
    worker.start(sent[0])

    pass_minutes(3)

    assert kept(mine) == [(1, "running"), (2, "skipped"), (3, "skipped"), (4, "sent")]


@each_database
def test_buffer_one_buffers_one_run_and_sends_it_when_the_previous_one_ends(
    mine, beat, sent, worker, pass_minutes
):
    mine.create("n", task="t", trigger=MINUTELY, overlap="buffer_one")
    pass_minutes(1)
    worker.start(sent[0])
    pass_minutes(2)
    assert kept(mine) == [(1, "running"), (2, "pending"), (3, "skipped")]
    assert (
        reason(mine, 3)
        == "overlap: the previous run had not ended, and one run was waiting already"
    )

    (waiting,) = mine.runs(status="pending").items
    assert (waiting.waited_for, waiting.is_waiting, waiting.lag) == ("previous", True, None)

    worker.finish(sent[0])
    beat.run_until_idle()

    assert kept(mine) == [(1, "succeeded"), (2, "sent"), (3, "skipped")]
    (waited,) = mine.runs(status="sent").items
    assert (waited.wait, waited.lag) == (MINUTE, timedelta(0))
    assert [run.fire_at for run in sent] == [START + MINUTE, START + 2 * MINUTE]
    assert worker.start(sent[1])


def test_the_sweep_sends_a_buffered_run_when_no_worker_has_released_it(
    dynbeat, mine, clock, beat, sent, worker, pass_minutes
):
    mine.create("n", task="t", trigger=MINUTELY, overlap="buffer_one")
    pass_minutes(1)
    worker.start(sent[0])
    pass_minutes(1)
    with dynbeat.context.database.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE dynbeat_run SET status = 'failed', finished_at = started_at"
            " WHERE status = 'running'"
        )

    clock.advance(dynbeat.context.settings.dispatch_timeout)
    worker.heartbeat()
    beat.run_until_idle()

    assert kept(mine) == [(1, "failed"), (2, "sent")]


def test_cancel_previous_ends_a_run_of_any_age(mine, sent, worker, beat, pass_minutes):
    mine.create("n", task="t", trigger=MINUTELY, overlap="cancel_previous", max_run_time=1)
    pass_minutes(1)
    worker.start(sent[0])

    pass_minutes(1)

    assert beat.publisher.terminated == [sent[0].run_id]


def test_the_request_to_end_a_run_is_repeated_and_the_run_never_starts_again(
    dynbeat, mine, clock, sent, worker, beat, pass_minutes
):
    mine.create("n", task="t", trigger=MINUTELY, overlap="cancel_previous", on_lost="rerun")
    pass_minutes(1)
    worker.start(sent[0])
    pass_minutes(1)
    mine.pause("n")
    clock.advance(dynbeat.context.settings.node_timeout / 2)
    worker.heartbeat()
    beat.run_until_idle()
    assert beat.publisher.terminated == [sent[0].run_id] * 2

    clock.advance(dynbeat.context.settings.node_timeout)
    beat.run_until_idle()

    assert kept(mine) == [(1, "revoked"), (2, "revoked")]


def test_the_new_run_is_sent_when_the_broadcast_fails(dynbeat, mine, worker, pass_minutes):
    beat = ManualBeat(dynbeat)
    mine.create("n", task="t", trigger=MINUTELY, overlap="cancel_previous")
    pass_minutes(1, beat)
    worker.start(beat.publisher.sent[0])

    def broken(run_ids):
        raise ConnectionError(run_ids)

    beat.publisher.terminate = broken
    pass_minutes(1, beat)

    assert kept(mine) == [(1, "running"), (2, "sent")]


@each_database
def test_two_beats_together_buffer_one_run(dynbeat, mine, clock):
    beats = [ManualBeat(dynbeat), ManualBeat(dynbeat)]
    mine.create("n", task="t", trigger=MINUTELY, overlap="buffer_one", catch_up="all")

    clock.advance(3 * MINUTE)
    for beat in beats:
        beat.run_until_idle()

    assert kept(mine) == [(1, "sent"), (2, "pending"), (3, "skipped")]
    assert sum(len(beat.publisher.sent) for beat in beats) == 1
