"""Each record about a schedule or run has its owner and name, and the number of the attempt."""

import logging
from datetime import timedelta

import pytest

from celery_dynbeat.common.states import Status
from celery_dynbeat.worker.outcomes import Outcome
from tests.support.applications import MINUTELY, execute
from tests.support.worker_stub import WorkerStub

MINUTE = timedelta(minutes=1)


@pytest.fixture
def fields(caplog):
    """Return a function that returns these fields of the only record of an event."""
    caplog.set_level(logging.INFO)

    def fields(event, *names):
        (record,) = [each for each in caplog.records if getattr(each, "event", None) == event]
        return tuple(getattr(record, name) for name in names)

    return fields


@pytest.fixture
def begun(dynbeat, mine, clock, beat):
    """Return a worker and a run that it has started."""
    mine.create("digest", task="t", trigger=MINUTELY, pause_after_failures=1)
    clock.advance(MINUTE)
    beat.run_until_idle()
    worker, run = WorkerStub(dynbeat), beat.publisher.sent[-1]
    assert worker.start(run)
    mine.update("digest", max_runs=1)
    clock.advance(timedelta(seconds=1))
    return worker, run


def test_dispatched(mine, clock, beat, fields):
    mine.create("digest", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    beat.run_until_idle()

    (runs,) = fields("runs_dispatched", "runs")
    sent = beat.publisher.sent[0]
    assert runs == [
        {
            "owner": "user:42",
            "schedule": "digest",
            "run_id": sent.run_id,
            "attempt": 1,
            "task": "t",
        }
    ]


def test_paused(mine, clock, beat, begun, fields):
    worker, run = begun
    mine.update("digest", max_runs=2)
    clock.advance(timedelta(seconds=1))
    worker.finish(run, Status.FAILED)
    clock.advance(timedelta(minutes=1))
    beat.run_until_idle()

    found = fields("schedule_paused", "owner", "schedule", "schedule_id")
    assert found == ("user:42", "digest", run.schedule_id)
    assert mine.get("digest").enabled is False


def test_unpublishable(dynbeat, mine, beat, fields):
    mine.create("digest", task="t", trigger=MINUTELY)
    run = mine.run_now("digest")
    # More digits than Python reads.
    execute(dynbeat, "UPDATE dynbeat_schedule SET args = :args", args=f"[{'9' * 5_000}]")
    beat.run_until_idle()

    found = fields("run_unpublishable", "owner", "schedule", "run_id", "attempt")
    assert found == ("user:42", "digest", run.id, 1)


def test_the_attempt_of_an_outcome_of_an_unstarted_message_follows_the_one_that_it_names(clock):
    details = {"run_id": "r", "worker": "w", "at": clock.now()}
    dropped = Outcome(attempt=2, status=Status.EXPIRED, started=False, **details)
    ended = Outcome(attempt=2, status=Status.FAILED, **details)

    assert (dropped.reported_attempt, ended.reported_attempt) == (3, 2)
