"""A real Prometheus scrapes a real beat; the values fit the tables."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat import Once
from tests.support.servers import PrometheusServer
from tests.support.sites import OWNER
from tests.support.waiting import wait_until

RUNS = {"probe.record": 30, "probe.fail": 10}
TOTAL = sum(RUNS.values())


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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_prometheus_sees_what_the_tables_contain(redis_site, own_server):
    redis_site.config |= {"dynbeat_metrics": 0}
    redis_site.worker()
    beat = redis_site.beat()
    ScrapingServer.targets |= {"beat": target_of(beat)}
    prometheus = own_server(ScrapingServer)

    create_runs(redis_site)
    wait_until(lambda: len(redis_site.runs()) == TOTAL, within=60)

    sent = "sum by (task) (dynbeat_runs_dispatched_total)"
    wait_until(lambda: prometheus.query(sent) == RUNS, within=30)
    assert prometheus.query("sum(dynbeat_lag_seconds_count)") == {"": TOTAL}
    assert prometheus.query("sum(dynbeat_database_scrape_success)") == {"": 1}
    assert prometheus.query("sum(up)") == {"": 1}
