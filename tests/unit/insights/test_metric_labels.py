"""No row and no message can create endless series."""

import pytest

from celery_dynbeat.metrics.definitions import OTHER, UNKNOWN, Metric
from celery_dynbeat.metrics.exporting import MAX_VALUES, ProcessCounts
from celery_dynbeat.telemetry import emit, events

METRIC = Metric("runs_total", "Runs", labels=("task", "queue"))


def values(counts):
    (family,) = counts.collect()
    return {tuple(sample.labels.values()): sample.value for sample in family.samples}


def test_values_beyond_the_bound_are_counted_together():
    counts = ProcessCounts()

    for number in range(MAX_VALUES + 50):
        counts.add(METRIC, 1, f"task.{number}", "q")
    counts.add(METRIC, 1, "task.0", "q")

    found = values(counts)
    assert len(found) == MAX_VALUES + 1
    assert found[OTHER, "q"] == 50
    assert found["task.0", "q"] == 2


@pytest.mark.parametrize("empty", ["", None])
def test_an_empty_value_is_unknown(empty):
    counts = ProcessCounts()

    counts.add(METRIC, 1, "t", empty)

    assert values(counts) == {("t", UNKNOWN): 1}


def test_an_event_that_cannot_be_counted_is_logged_once(caplog):
    class FullDisk(ProcessCounts):
        def add(self, _metric, value, *_):
            if value:
                raise OSError(28, "No space left on device")

    counts = FullDisk()
    counts.connect()
    try:
        for _ in range(3):
            emit(events.NotificationReceived())
    finally:
        counts.disconnect()

    (record,) = caplog.records
    assert (record.event, "No space left" in record.getMessage()) == ("metrics_failed", True)
