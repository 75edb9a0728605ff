"""docs/how-to/troubleshooting.md describes each cause of ``explain``, and no other."""

import re
from pathlib import Path

from celery_dynbeat.insights.explain.causes import Cause
from celery_dynbeat.insights.explain.past import PastCause

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "troubleshooting.md"


def test_the_page_has_one_row_for_each_cause():
    rows = re.findall(r"^\| `(\w+)` \| .+ \| .+ \|$", PAGE.read_text(), re.MULTILINE)

    assert sorted(rows) == sorted(Cause)


def test_the_page_has_one_row_for_each_cause_of_the_past():
    section = PAGE.read_text().partition("## Why did it not run")[2]
    rows = re.findall(r"^\| (`[^|]+`) \|", section, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}

    assert set(PastCause) <= named <= {*PastCause, *Cause}
