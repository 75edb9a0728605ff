"""The files of examples/monitoring: promtool accepts them, and the rules fire when they should."""

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from celery_dynbeat.metrics.definitions import BEAT_METRICS, DATABASE_METRICS
from tests.support.fixtures import service_is_missing
from tests.support.promtool import check_firing, promtool
from tests.support.servers import ServerMissingError

MONITORING = Path(__file__).parents[2] / "examples" / "monitoring"
RULES = MONITORING / "rules.yml"
INTERVAL = timedelta(seconds=15)
#: Series of a working installation: their first value, and what each interval adds.
HEALTHY = {
    'dynbeat_last_successful_pass_age_seconds{instance="b1"}': (1, 0),
    'dynbeat_last_successful_pass_age_seconds{instance="b2"}': (2, 0),
    "dynbeat_oldest_due_age_seconds": (0, 0),
    "dynbeat_oldest_pending_run_age_seconds": (3, 0),
    "dynbeat_quarantined_schedules": (0, 0),
    'dynbeat_missing_nodes{kind="beat"}': (0, 0),
    'dynbeat_missing_nodes{kind="worker"}': (0, 0),
    "dynbeat_database_scrape_success": (1, 0),
    'dynbeat_clock_offset_seconds{instance="b1"}': (0.1, 0),
    "dynbeat_lost_runs": (0, 0),
    'dynbeat_runs_ended_total{queue="q",status="succeeded",instance="b1"}': (0, 100),
    'dynbeat_runs_ended_total{queue="q",status="succeeded",instance="b2"}': (0, 100),
    'dynbeat_runs_ended_total{queue="q",status="failed",instance="b1"}': (0, 20),
    'dynbeat_runs_ended_total{queue="q",status="failed",instance="b2"}': (0, 20),
    'dynbeat_lag_seconds_bucket{le="0.1"}': (0, 100),
    'dynbeat_lag_seconds_bucket{le="10"}': (0, 100),
    'dynbeat_lag_seconds_bucket{le="+Inf"}': (0, 100),
}
COUNT = 80
#: The series that an incident changes, and the alerts that then fire.
INCIDENTS = {
    "no beat": (
        {
            'dynbeat_last_successful_pass_age_seconds{instance="b1"}': None,
            'dynbeat_last_successful_pass_age_seconds{instance="b2"}': None,
        },
        {"DynbeatNoBeat"},
    ),
    "one of two beats is stuck": (
        {'dynbeat_last_successful_pass_age_seconds{instance="b1"}': (0, 15)},
        {"DynbeatBeatStuck"},
    ),
    "no beat makes a pass": (
        {
            'dynbeat_last_successful_pass_age_seconds{instance="b1"}': (0, 15),
            'dynbeat_last_successful_pass_age_seconds{instance="b2"}': (0, 15),
        },
        {"DynbeatNoProgress", "DynbeatBeatStuck"},
    ),
    "a worker's host is killed": (
        {'dynbeat_missing_nodes{kind="worker"}': (1, 0)},
        {"DynbeatNodeMissing"},
    ),
    "a schedule stays due": ({"dynbeat_oldest_due_age_seconds": (0, 15)}, {"DynbeatOverdue"}),
    "no worker": (
        {"dynbeat_oldest_pending_run_age_seconds": (0, 15)},
        {"DynbeatOldestPending"},
    ),
    "many runs fail": (
        {'dynbeat_runs_ended_total{queue="q",status="failed",instance="b1"}': (0, 50)},
        {"DynbeatFailureRate"},
    ),
    "a worker dies": ({"dynbeat_lost_runs": (1, 0)}, {"DynbeatRunsLost"}),
    "a damaged row": ({"dynbeat_quarantined_schedules": (1, 0)}, {"DynbeatQuarantined"}),
    "the database does not answer": (
        {
            "dynbeat_database_scrape_success": (0, 0),
            "dynbeat_oldest_due_age_seconds": None,
            "dynbeat_oldest_pending_run_age_seconds": None,
            "dynbeat_quarantined_schedules": None,
            "dynbeat_lost_runs": None,
        },
        {"DynbeatDatabaseUnreadable"},
    ),
    "a mail server is away": (
        {"dynbeat_alert_messages_dropped_total": (0, 1)},
        {"DynbeatAlertDropped"},
    ),
    "runs are sent late": (
        {
            'dynbeat_lag_seconds_bucket{le="0.1"}': (0, 0),
            'dynbeat_lag_seconds_bucket{le="10"}': (0, 100),
        },
        {"DynbeatLag"},
    ),
    "a wrong clock": (
        {'dynbeat_clock_offset_seconds{instance="b1"}': (-9, 0)},
        {"DynbeatClockOffset"},
    ),
}


@pytest.fixture(autouse=True)
def prometheus_tools(tmp_path):
    try:
        promtool("--version", folder=tmp_path)
    except ServerMissingError as error:
        service_is_missing(str(error))


def series_of(changes):
    """Return the samples of a working installation with the changes of an incident."""
    return {
        name: [first + step * number for number in range(COUNT)]
        for name, values in {**HEALTHY, **changes}.items()
        if values is not None
        for first, step in [values]
    }


def expressions():
    """Return each query of the dashboard, with values for Grafana's variables."""
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    return [
        target["expr"].replace("$__rate_interval", "1m").replace("$task", ".*")
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    ]


def test_promtool_accepts_the_configuration_with_its_rules():
    printed = promtool("check", "config", "prometheus.yml", folder=MONITORING)

    assert "SUCCESS" in printed


def test_promtool_accepts_each_query_of_the_dashboard(tmp_path):
    rules = [{"record": "query", "expr": each} for each in expressions()]
    document = {"groups": [{"name": "queries", "rules": rules}]}
    (tmp_path / "queries.yml").write_text(yaml.safe_dump(document))

    # Without lint: the queries have one name.
    printed = promtool("check", "rules", "--lint=none", "queries.yml", folder=tmp_path)

    assert f"{len(rules)} rules found" in printed
    assert len(rules) > 20


def test_rules_and_dashboard_use_only_metrics_that_exist():
    names = {
        f"{metric.full_name}{suffix}"
        for metric in (*BEAT_METRICS, *DATABASE_METRICS)
        for suffix in (("_bucket", "_count", "_sum") if metric.buckets else ("",))
    }
    rules = [rule["expr"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]]

    used = set(re.findall(r"\bdynbeat_\w+", " ".join([*rules, *expressions()])))

    assert used <= names


def test_each_rule_has_an_incident():
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]

    assert {rule["alert"] for rule in rules} == set().union(
        *(names for _, names in INCIDENTS.values())
    )


def test_no_rule_fires_in_a_working_installation(tmp_path):
    check_firing(
        RULES,
        series_of({}),
        {timedelta(minutes=minutes): () for minutes in range(1, 20)},
        interval=INTERVAL,
        folder=tmp_path,
    )


@pytest.mark.parametrize(("changes", "alerts"), INCIDENTS.values(), ids=INCIDENTS)
def test_the_rules_fire_for_an_incident(tmp_path, changes, alerts):
    check_firing(
        RULES,
        series_of(changes),
        {timedelta(minutes=19): alerts},
        interval=INTERVAL,
        folder=tmp_path,
    )
