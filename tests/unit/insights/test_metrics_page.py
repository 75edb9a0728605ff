"""docs/reference/metrics.md describes each metric, and no other."""

import re
from pathlib import Path

import pytest

from celery_dynbeat.metrics.definitions import BEAT_METRICS, DATABASE_METRICS

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (.*?) ?\| .+ \|$", re.MULTILINE)
METRICS = {"Beat": BEAT_METRICS, "Database": DATABASE_METRICS}


def sections():
    parts = PAGE.read_text().split("\n## ")[1:]
    return {part.partition("\n")[0]: part for part in parts}


@pytest.mark.parametrize("title", METRICS)
def test_the_page_has_one_row_for_each_metric(title):
    found = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in ROW.findall(sections()[title])
    }

    assert found == {each.full_name: (each.kind, each.labels) for each in METRICS[title]}
