"""A real Prometheus scrapes a real beat and a real prefork worker; the values fit the tables."""

import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection

import pytest

from celery_dynbeat import Once
from celery_dynbeat.broker import HEADER_RUN_ID
from tests.support.servers import PrometheusServer
from tests.support.sites import OWNER
from tests.support.waiting import wait_until

RUNS = {"probe.record": 150, "probe.fail": 30, "probe.retry": 10, "probe.crash": 10}
TOTAL, RETRIES = sum(RUNS.values()), RUNS["probe.retry"]
ENDED = 'sum by (status, task) (dynbeat_runs_ended_total{status!="retrying"})'
DUPLICATES = 10
FINAL = {"succeeded", "failed"}


class ScrapingServer(PrometheusServer):
    """Scrapes the endpoints that a test adds before the start."""

    targets = {}  # noqa: RUF012 - one test


def target_of(process):
    process.wait_for_log("metrics exported on")
    return re.search(r"metrics exported on http://([\d.:]+)/metrics", process.text)[1]


def create_runs(site):
    at = datetime.now(UTC) + timedelta(seconds=1)
    site.dynbeat.schedules.create_many(
        [
            {"owner": OWNER, "name": f"{task} {number}", "task": task, "trigger": Once(at)}
            for task, count in RUNS.items()
            for number in range(count)
        ]
    )


def send_duplicates(site):
    succeeded = [run for run in site.runs() if run.task == "probe.record"][:DUPLICATES]
    for run in succeeded:
        site.app.send_task("probe.record", task_id=run.id, headers={HEADER_RUN_ID: run.id})


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_prometheus_sees_what_the_tables_contain(redis_site, own_server, tmp_path):
    redis_site.config |= {"dynbeat_metrics_port": 0, "worker_max_tasks_per_child": 5}
    # billiard can lose a message that it gives to a pool process that ends.
    redis_site.config |= {"dynbeat_resend_after": 60}
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    worker = redis_site.worker(TMPDIR=str(temporary))
    beat = redis_site.beat()
    ScrapingServer.targets |= {"beat": target_of(beat), "worker": target_of(worker)}
    prometheus = own_server(ScrapingServer)

    create_runs(redis_site)
    wait_until(lambda: len(redis_site.runs()) == TOTAL, within=60)
    # A worker waits for up to two minutes for the outcome of a pool process that it lost.
    wait_until(lambda: {run.status for run in redis_site.runs()} <= FINAL, within=200)
    send_duplicates(redis_site)

    rows = Counter((run.status, run.task) for run in redis_site.runs())
    refused = "sum(dynbeat_duplicates_refused_total)"
    wait_until(lambda: prometheus.query(refused) == {"": DUPLICATES}, within=20)
    assert prometheus.query(ENDED) == {f"{status},{task}": n for (status, task), n in rows.items()}
    assert prometheus.query("sum by (task) (dynbeat_runs_dispatched_total)") == RUNS
    started = prometheus.query("sum by (task) (dynbeat_runs_started_total)")
    assert started == {**RUNS, "probe.retry": 2 * RETRIES}
    assert prometheus.query("sum(dynbeat_lag_seconds_count)") == {"": TOTAL}
    assert prometheus.query("sum(dynbeat_queue_time_seconds_count)") == {"": TOTAL}
    # A process that was killed reports no duration.
    durations = prometheus.query("sum(dynbeat_run_duration_seconds_count)")
    assert durations == {"": TOTAL + RETRIES - RUNS["probe.crash"]}
    assert prometheus.query("sum(dynbeat_database_scrape_success)") == {"": 1}
    assert prometheus.query("sum(up)") == {"": 2}
    assert worker.text.count("metrics_failed") == 0

    # Two pool processes, the main process, and processes that ended while their successor started.
    (folder,) = temporary.glob("dynbeat-metrics-*")
    assert len(list(folder.glob("counter_*.db"))) <= 6
    assert worker.terminate() == 0
    assert not list(temporary.glob("dynbeat-metrics-*"))


def exported_by(process):
    host, _, port = target_of(process).partition(":")
    connection = HTTPConnection(host, int(port), timeout=5)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_beat_and_worker_name_the_same_queue_of_a_topic_exchange(redis_site):
    reports = {"exchange": "reports", "exchange_type": "topic", "routing_key": "reports.#"}
    redis_site.config |= {
        "dynbeat_metrics_port": 0,
        "task_queues": {"celery": {}, "reports": reports},
        "task_routes": {"probe.*": {"queue": "reports", "routing_key": "reports.user.42"}},
    }
    worker = redis_site.worker()
    redis_site.create_once("record")
    beat = redis_site.beat()
    redis_site.wait_for_run("record", "succeeded")

    series = '{queue="reports",task="probe.record"} 1.0'
    started, dispatched = (
        f"dynbeat_runs_{name}_total{series}" for name in ("started", "dispatched")
    )
    wait_until(lambda: started in exported_by(worker), within=10)
    wait_until(lambda: dispatched in exported_by(beat), within=10)


def test_a_worker_exports_what_its_embedded_beat_counts(redis_site):
    redis_site.config |= {"dynbeat_metrics_port": 0, "beat_scheduler": "dynbeat"}
    worker = redis_site.worker("-B")
    redis_site.create_once("record")
    redis_site.wait_for_run("record", "succeeded")

    ended = 'dynbeat_runs_ended_total{status="succeeded",task="probe.record"} 1.0'
    wait_until(lambda: ended in exported_by(worker), within=10)
    dispatched = 'dynbeat_runs_dispatched_total{queue="celery",task="probe.record"} 1.0'
    wait_until(lambda: dispatched in exported_by(worker), within=10)
    assert worker.text.count("metrics exported on") == 1
