"""docs/reference/metrics.md describes each metric, and no other."""

import re
from pathlib import Path

import pytest

from celery_dynbeat.metrics.definitions import METRICS, Exporter

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (.*?) ?\| .+ \|$", re.MULTILINE)
EXPORTERS = {
    "Beat": {Exporter.BEAT},
    "Database": {Exporter.BEAT, Exporter.FLOWER},
}


def sections():
    parts = PAGE.read_text().split("\n## ")[1:]
    return {part.partition("\n")[0]: part for part in parts}


@pytest.mark.parametrize("title", EXPORTERS)
def test_the_page_has_one_row_for_each_metric(title):
    found = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in ROW.findall(sections()[title])
    }

    exported = {
        name: (metric.kind, metric.labels)
        for name, metric in METRICS.items()
        if metric.exporters == EXPORTERS[title]
    }
    assert found == exported


def test_each_metric_has_the_processes_of_one_section():
    assert {metric.exporters for metric in METRICS.values()} == set(
        map(frozenset, EXPORTERS.values())
    )


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_a_name_follows_the_rules_of_prometheus(metric):
    assert re.fullmatch(r"dynbeat_[a-z_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert (metric.kind == "histogram") <= metric.name.endswith("_seconds")
    assert set(metric.labels) <= {"task", "queue", "status", "reason", "kind"}
