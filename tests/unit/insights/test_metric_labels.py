"""No row and no message can create endless series."""

import pytest

from celery_dynbeat.metrics.counts import ProcessCounts
from celery_dynbeat.metrics.label_values import (
    MAX_VALUES,
    OTHER,
    UNKNOWN,
    LabelValues,
    skip_reason,
)
from celery_dynbeat.metrics.receivers import Receivers
from celery_dynbeat.telemetry import emit, events


def test_values_beyond_the_bound_are_counted_together():
    values = LabelValues()

    kept = {values.bounded("task", f"task.{number}") for number in range(MAX_VALUES + 50)}

    assert len(kept) == MAX_VALUES + 1
    assert values.bounded("task", "another") == OTHER
    assert values.bounded("task", "task.0") == "task.0"
    assert values.bounded("queue", "q") == "q"


@pytest.mark.parametrize("empty", ["", None])
def test_an_empty_value_is_unknown(empty):
    assert LabelValues().bounded("queue", empty) == UNKNOWN


@pytest.mark.parametrize(
    ("stored", "label"),
    [
        ("overlap: the previous run had not ended", "overlap"),
        ("missed: a newer fire time was sent instead", "missed"),
        ("skipped by alice: holiday", "skipped"),
        ("skipped by a call", "skipped"),
        ("text of an older version", OTHER),
    ],
)
def test_the_reason_of_a_skip_is_its_first_word(stored, label):
    assert skip_reason(stored) == label


def test_an_event_that_cannot_be_counted_is_logged_once(caplog):
    class FullDisk(ProcessCounts):
        def add(self, *_):
            raise OSError(28, "No space left on device")

    receivers = Receivers(FullDisk())
    receivers.connect()
    try:
        for _ in range(3):
            emit(events.NotificationReceived())
    finally:
        receivers.disconnect()

    (record,) = caplog.records
    assert (record.event, "No space left" in record.getMessage()) == ("metrics_failed", True)
