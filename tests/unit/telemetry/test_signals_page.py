"""docs/reference/signals.md names each signal, and the fields of each event with their types."""

import runpy
from pathlib import Path

from celery.utils.dispatch import Signal

from celery_dynbeat import signals
from celery_dynbeat.telemetry import events

SCRIPT = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "generate_signals.py"))
TEXT = SCRIPT["PAGE"].read_text()


def test_the_page_has_the_fields_of_each_event():
    assert SCRIPT["page"](TEXT) == TEXT, "run `make docs`"


def test_the_page_names_each_signal():
    names = {name for name, each in vars(signals).items() if isinstance(each, Signal)}

    assert {name for name in names if f"`{name}` (`" not in TEXT} == set()


def test_each_meaning_belongs_to_a_field():
    used = {
        key
        for event in vars(events).values()
        for field in getattr(event, "__dataclass_fields__", ())
        for key in (field, f"{event.__name__}.{field}")
    }

    assert set(SCRIPT["MEANINGS"]) <= used
