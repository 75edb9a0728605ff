"""Requests to end replaced runs: how often beat sends them, and the notes that it writes."""

import logging
from datetime import timedelta

import pytest

from celery_dynbeat.beat import termination
from celery_dynbeat.beat.termination import MAX_RETRIES, NOT_ENDED
from celery_dynbeat.common.errors import DispatchError
from celery_dynbeat.testing import ManualBeat, RecordingPublisher
from tests.support.applications import MINUTELY
from tests.support.worker_stub import WorkerStub

REFUSAL = "beat may not write"


class Broker(RecordingPublisher):
    """A broker whose response to a broadcast the test sets."""

    def __init__(self):
        super().__init__()
        self.requests = 0
        self.error = None

    def terminate(self, run_ids):
        self.requests += 1
        if self.error is not None:
            raise self.error
        super().terminate(run_ids)


@pytest.fixture
def beat(dynbeat):
    return ManualBeat(dynbeat, Broker())


@pytest.fixture
def broker(beat):
    return beat.publisher


@pytest.fixture
def worker(dynbeat):
    return WorkerStub(dynbeat)


@pytest.fixture
def run_maintenance(dynbeat, clock, beat, worker):
    """Give a function that runs the maintenance of beat several times."""

    def make(count):
        for _ in range(count):
            clock.advance(dynbeat.context.settings.node_timeout / 3)
            worker.heartbeat()
            beat.run_until_idle()

    return make


@pytest.fixture
def replace_one(mine, clock, beat, broker, worker):
    """Give a function that returns a running run that a newer run has just replaced."""

    def replace(name="n"):
        mine.create(name, task="t", trigger=MINUTELY, overlap="cancel_previous")
        for _ in range(2):
            clock.advance(timedelta(minutes=1))
            worker.heartbeat()
            beat.run_until_idle()
            if len(mine.runs(name)) == 1:
                first = next(run for run in broker.sent if run.name == name)
                worker.start(first)
        assert [run.status for run in mine.runs(name)] == ["sent", "running"]
        mine.pause(name)
        return first

    return replace


def error_of(mine, run):
    return next(found.error for found in mine.runs(run.name) if found.id == run.run_id)


def warnings(caplog):
    return [
        record.getMessage()
        for record in caplog.records
        if getattr(record, "event", None) == "terminate_failed"
        and record.levelno == logging.WARNING
    ]


def test_a_run_that_no_worker_ends_gets_a_note_and_no_further_request(
    mine, broker, replace_one, run_maintenance, caplog
):
    run = replace_one()

    run_maintenance(MAX_RETRIES)
    assert error_of(mine, run) is None
    run_maintenance(3)

    assert broker.terminated == [run.run_id] * (1 + MAX_RETRIES)
    assert error_of(mine, run) == NOT_ENDED
    assert len(warnings(caplog)) == 1


def test_a_refused_request_is_noted_and_delays_nothing(
    mine, broker, replace_one, run_maintenance, caplog
):
    broker.error = DispatchError(REFUSAL)
    run = replace_one()

    run_maintenance(3)

    assert broker.requests == 2
    assert error_of(mine, run) == REFUSAL
    assert len(warnings(caplog)) == 1


def test_requests_are_repeated_until_the_broker_is_reachable(
    mine, broker, replace_one, run_maintenance, caplog
):
    broker.error = ConnectionError("unreachable")
    run = replace_one()
    run_maintenance(MAX_RETRIES + 2)
    assert error_of(mine, run) is None
    assert len(warnings(caplog)) == 1

    broker.error = None
    run_maintenance(1)

    assert broker.terminated == [run.run_id]


def refused_one_after_the_other(replace_one, run_maintenance, names):
    runs = []
    for name in names:
        runs.append(replace_one(name))
        run_maintenance(1)
    return runs


def test_no_request_is_sent_for_a_while_after_repeated_refusals(
    mine, broker, replace_one, run_maintenance
):
    broker.error = DispatchError(REFUSAL)

    runs = refused_one_after_the_other(replace_one, run_maintenance, "abc")

    assert broker.requests == termination.MAX_REFUSALS
    assert [error_of(mine, run) for run in runs] == [REFUSAL] * 3


def test_a_later_claim_sends_no_request_for_a_run_that_was_replaced_before(
    mine, clock, beat, broker, worker, replace_one
):
    run = replace_one()
    mine.resume("n")
    clock.advance(timedelta(minutes=1))
    worker.heartbeat()

    beat.run_until_idle()

    # By the first claim, and by the maintenance of this pass.
    assert broker.terminated == [run.run_id] * 2
