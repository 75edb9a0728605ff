"""docs/how-to/explain.md describes each cause of ``explain``, and no other."""

import re
from pathlib import Path

from celery_dynbeat.insights.explain.findings import Cause

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "explain.md"


def test_the_page_has_one_row_for_each_cause():
    rows = re.findall(r"^\| `(\w+)` \| .+ \| .+ \|$", PAGE.read_text(), re.MULTILINE)

    assert sorted(rows) == sorted(Cause)
