"""The asynchronous calls have the signatures and the text of the synchronous ones."""

import inspect
import pydoc
import runpy
from pathlib import Path

import pytest

from celery_dynbeat.api import (
    Calendars,
    OwnerSchedules,
    Schedules,
    async_calls,
)
from celery_dynbeat.api.async_calls import (
    AsyncCalendars,
    AsyncOwnerSchedules,
    AsyncSchedules,
)

SCRIPT = Path(__file__).parents[3] / "docs" / "generate_async_calls.py"
STUB = Path(async_calls.__file__).with_suffix(".pyi")
KINDS = [
    (AsyncOwnerSchedules, OwnerSchedules),
    (AsyncSchedules, Schedules),
    (AsyncCalendars, Calendars),
]
#: The calls that return other calls.
SCOPES = ("bound", "for_owner")


def public(kind):
    return {name: call for name, call in inspect.getmembers(kind) if not name.startswith("_")}


def parameters(call):
    """Return the parameters without the annotation of ``session``."""
    return [
        each.replace(annotation=None) if each.name == "session" else each
        for each in inspect.signature(call).parameters.values()
    ]


def test_the_stub_is_what_the_script_writes():
    pytest.importorskip("ruff")
    written = runpy.run_path(str(SCRIPT))["stub"]()

    assert STUB.read_text() == written, "run `make docs`"


def test_help_shows_the_signature_and_the_text_of_the_synchronous_call():
    # Python 3.13 writes each parameter of a long signature on a line.
    text = pydoc.plain(pydoc.render_doc(AsyncOwnerSchedules.pause))
    shown = " ".join(text.split()).replace("( self", "(self")

    assert "async pause(self, name: str, *, until: " in shown
    assert inspect.getdoc(AsyncOwnerSchedules.pause) == inspect.getdoc(OwnerSchedules.pause)
    assert "Stop the schedule until ``resume``" in shown


@pytest.mark.parametrize(("kind", "synchronous"), KINDS)
def test_each_call_has_an_asynchronous_twin_with_the_same_parameters(kind, synchronous):
    expected = public(synchronous)
    found = public(kind)

    assert found.keys() == expected.keys()
    for name, call in found.items():
        assert parameters(call) == parameters(expected[name]), name


@pytest.mark.parametrize(("kind", "synchronous"), KINDS)
def test_each_call_is_awaited_and_returns_the_same_type(kind, synchronous):
    expected = public(synchronous)
    calls = {name: call for name, call in public(kind).items() if name not in SCOPES}

    for name, call in calls.items():
        returns = inspect.signature(call).return_annotation
        if name == "export":
            assert inspect.isfunction(call)
            assert "AsyncIterator" in str(returns)
        else:
            assert inspect.iscoroutinefunction(call), name
            assert returns == inspect.signature(expected[name]).return_annotation, name
