"""The counts of a process as series of Prometheus."""

from celery_dynbeat.metrics.counting import ProcessCounts
from celery_dynbeat.metrics.definitions import EVENT_METRICS

METRICS = {metric.name: metric for metric in EVENT_METRICS}


def test_counters_and_histograms_become_series():
    counts = ProcessCounts()
    counts.add(METRICS["notifications_received_total"], 0)
    counts.add(METRICS["runs_dispatched_total"], 1, 'a "b"\n\\', "ü")
    counts.add(METRICS["runs_dispatched_total"], 2, 'a "b"\n\\', "ü")
    for seconds in (0.0005, 0.3, 10**9):
        counts.add(METRICS["lag_seconds"], seconds, "celery")

    series = {
        (sample.name, *sample.labels.values()): sample.value
        for family in counts.collect()
        for sample in family.samples
    }

    assert series["dynbeat_notifications_received_total",] == 0
    assert series["dynbeat_runs_dispatched_total", 'a "b"\n\\', "ü"] == 3
    assert series["dynbeat_lag_seconds_count", "celery"] == 3
    assert series["dynbeat_lag_seconds_bucket", "celery", "0.005"] == 1
    assert series["dynbeat_lag_seconds_bucket", "celery", "0.5"] == 2
    assert series["dynbeat_lag_seconds_bucket", "celery", "+Inf"] == 3
    assert not any(name.endswith("_created") for name, *_ in series)
