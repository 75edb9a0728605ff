"""What beat counts agrees with the tables, and its endpoint shows it."""

import socket
from collections import Counter
from datetime import timedelta
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from celery_dynbeat.common.settings import MetricsEndpoint
from celery_dynbeat.common.states import Status
from celery_dynbeat.metrics.definitions import BEAT_METRICS, DATABASE_METRICS
from celery_dynbeat.metrics.exporting import BeatMetrics, DatabaseGauges
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, application, execute
from tests.support.ended_runs import end_all
from tests.support.rollup import count_runs
from tests.support.suites import each_database

MINUTE = timedelta(minutes=1)


def scrape(port):
    """Return the value of each series, by name and the values of its labels in order of names."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in families
            for sample in family.samples
        }


def collected(collector):
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in collector.collect()
        for sample in family.samples
    }


@pytest.fixture
def exported(dynbeat):
    """Give the metrics of a beat in this process."""
    metrics = BeatMetrics(dynbeat.context, MetricsEndpoint(0))
    yield metrics
    metrics.close()


@pytest.fixture
def tasks(dynbeat):
    @dynbeat.app.task(name="root", shared=False)
    def root(number):
        return number**0.5 if number >= 0 else {}["negative"]


@pytest.mark.usefixtures("tasks")
def test_the_counts_add_up_with_the_rows(dynbeat, mine, clock, exported):
    beat = ManualBeat(dynbeat, run_tasks=True)
    for number in range(6):
        mine.create(f"good {number}", task="root", args=[number], trigger=MINUTELY)
    for number in range(4):
        mine.create(f"bad {number}", task="root", args=[-1], trigger=MINUTELY)
    for _ in range(20):
        clock.advance(MINUTE)
        beat.run_until_idle()
    clock.advance(5 * MINUTE)
    beat.run_until_idle()

    rows = Counter()
    for run in mine.runs(limit=500).items:
        rows[run.status] += run.fire_count if run.status == Status.SKIPPED else 1
    of_beat = scrape(exported.port)
    assert rows == {"succeeded": 126, "failed": 84, "skipped": 40}
    # The publisher of ManualBeat has no queues.
    queue = "(unknown)"
    assert of_beat["dynbeat_runs_dispatched_total", queue, "root"] == 210
    assert of_beat["dynbeat_lag_seconds_count", queue] == 210
    assert of_beat["dynbeat_runs_skipped_total", "missed"] == rows["skipped"]


def test_the_endpoint_shows_only_defined_metrics(exported):
    names = {name for name, *_ in scrape(exported.port)}

    defined = {metric.full_name for metric in (*BEAT_METRICS, *DATABASE_METRICS)}
    suffixes = ("_bucket", "_sum", "_count")
    for name in names:
        base = next((name.removesuffix(s) for s in suffixes if name.endswith(s)), name)
        assert {name, base} & defined
    # Counters without labels and gauges are there from the start.
    assert names >= {
        metric.full_name
        for metric in (*BEAT_METRICS, *DATABASE_METRICS)
        if not metric.labels and metric.kind != "histogram"
    } - {"dynbeat_clock_offset_seconds", "dynbeat_waiting_runs"}


@each_database
def test_the_gauges_agree_with_the_tables(dynbeat, mine, clock):
    beat = ManualBeat(dynbeat)
    for number in range(3):
        mine.create(f"n{number}", task="t", trigger=MINUTELY)
    mine.create("broken", task="t", trigger=MINUTELY)
    execute(dynbeat, "UPDATE dynbeat_schedule SET trigger_spec = '{}' WHERE name = 'broken'")
    clock.advance(MINUTE)
    beat.run_until_idle()
    dynbeat.schedules.for_owner("held").hold(reason="moving")
    clock.advance(MINUTE + timedelta(seconds=30))

    read = collected(DatabaseGauges(dynbeat.context, timeout=30))

    assert read["dynbeat_database_scrape_success",] == 1
    assert read["dynbeat_due_schedules",] == 3
    assert read["dynbeat_oldest_due_age_seconds",] == 30
    assert read["dynbeat_unfinished_runs", "sent"] == 3
    assert read["dynbeat_unfinished_runs", "running"] == 0
    assert read["dynbeat_oldest_pending_run_age_seconds",] == 90
    assert read["dynbeat_quarantined_schedules",] == 1
    assert read["dynbeat_holds",] == 1
    assert read["dynbeat_beats", "working"] == 0
    only_if_used = {"dynbeat_waiting_runs"}
    of_runs = {"dynbeat_runs_ended_total", "dynbeat_run_duration_seconds"}
    always = {metric.full_name for metric in DATABASE_METRICS} - only_if_used - of_runs
    assert {name for name, *_ in read} == always


def test_the_ended_runs_are_counted_from_the_rollup(dynbeat, mine, clock):
    beat = ManualBeat(dynbeat)
    for status in ("succeeded", "succeeded", "failed"):
        mine.create(f"n{clock.now():%M}", task="t", trigger=MINUTELY)
        clock.advance(MINUTE)
        beat.run_until_idle()
        end_all(dynbeat, beat.publisher.sent, status)
    ended = mine.runs().items
    clock.advance(3 * MINUTE)
    count_runs(dynbeat, now=clock.now())

    read = collected(DatabaseGauges(dynbeat.context, timeout=30))

    numbers = Counter(run.status for run in ended)
    assert numbers["failed"] == 3
    for status in ("succeeded", "failed", "lost", "other"):
        assert read["dynbeat_runs_ended_total", "(unknown)", status] == numbers[status]
    assert read["dynbeat_run_duration_seconds_count", "(unknown)"] == len(ended)


def test_without_the_database_only_its_gauges_are_absent(caplog):
    url = "postgresql+psycopg://nobody@127.0.0.1:1/none"
    with application(url) as dynbeat:
        export = BeatMetrics(dynbeat.context, MetricsEndpoint(0))
        try:
            found = [scrape(export.port) for _ in range(2)]
        finally:
            export.close()

    for series in found:
        assert series["dynbeat_database_scrape_success",] == 0
        assert series["dynbeat_passes_failed_total",] == 0
        assert "dynbeat_last_successful_pass_age_seconds" in {name for name, *_ in series}
        assert "dynbeat_due_schedules" not in {name for name, *_ in series}
    assert found[1]["dynbeat_database_errors_total", "OperationalError"] >= 1
    assert [r.event for r in caplog.records].count("metrics_failed") == 1


def test_a_taken_port_is_logged_and_beat_works_on(dynbeat, mine, clock, caplog):
    with socket.create_server(("127.0.0.1", 0)) as other:
        export = BeatMetrics(dynbeat.context, MetricsEndpoint(other.getsockname()[1]))
        try:
            assert export.port is None
            mine.create("n", task="t", trigger=MINUTELY)
            clock.advance(MINUTE)
            beat = ManualBeat(dynbeat)
            beat.run_until_idle()
            assert len(beat.publisher.sent) == 1
        finally:
            export.close()
    (record,) = [r for r in caplog.records if getattr(r, "event", "") == "metrics_unavailable"]
    assert "DYNBEAT_METRICS" in record.getMessage()
