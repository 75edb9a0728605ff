"""What the events of a burst cost if no listener reads the runs."""

import dataclasses
import logging
import pickle
from datetime import timedelta

import pytest

from celery_dynbeat.telemetry import events, subscribe, unsubscribe
from celery_dynbeat.telemetry.logs import MAX_NAMED_RUNS
from tests.support.applications import MINUTELY


def test_a_large_batch_builds_one_event_and_one_record(mine, clock, beat, monkeypatch, caplog):
    def build(**_):
        pytest.fail("a listener read the runs")

    monkeypatch.setattr(events, "SentRun", build)
    count = MAX_NAMED_RUNS + 1
    for number in range(count):
        mine.create(f"n{number}", task="t", trigger=MINUTELY)
    clock.advance(timedelta(minutes=1))
    with caplog.at_level(logging.INFO, "celery_dynbeat"):
        beat.run_until_idle()

    assert len(beat.publisher.sent) == count
    sent = [record for record in caplog.records if hasattr(record, "claimed")]
    assert [(record.sent, record.claimed, record.runs) for record in sent] == [(count, count, [])]


def test_a_sent_batch_can_be_copied_pickled_and_compared(mine, clock, beat):
    reported = []
    subscribe(reported.append, events.RunsSent, key="test")
    try:
        mine.create("n", task="t", trigger=MINUTELY)
        clock.advance(timedelta(minutes=1))
        beat.run_until_idle()
    finally:
        unsubscribe("test", events.RunsSent)
    (batch,) = reported

    # Before the runs are read: until then they depend on the batch of beat.
    pickled = pickle.loads(pickle.dumps(batch))  # noqa: S301 - made here
    assert [run.schedule for run in batch.runs] == ["n"]
    assert pickled.runs == batch.runs
    assert list(dataclasses.asdict(batch)["runs"]) == list(batch.runs)
    assert "schedule='n'" in repr(batch)
