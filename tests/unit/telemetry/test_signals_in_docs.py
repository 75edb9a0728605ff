"""docs/reference/signals.md lists each signal with its event."""

import re
from pathlib import Path

from celery_dynbeat import signals

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "signals.md"


def test_the_page_lists_each_signal_once_with_a_public_event():
    lists, _, _ = PAGE.read_text().partition("## Fields of the events")
    rows = re.findall(r"`(\w+)` \(`([A-Z]\w+)`\)", lists)

    assert sorted(name for name, _ in rows) == sorted(filter(str.islower, signals.__all__))
    assert {event for _, event in rows} <= set(signals.__all__)


def test_each_signal_has_its_own_name():
    names = list(filter(str.islower, signals.__all__))

    assert [getattr(signals, name).name for name in names] == names
