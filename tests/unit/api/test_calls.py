"""What all calls of the API have in common."""

import inspect

import pytest

from celery_dynbeat.api import Calendars, OwnerSchedules, Schedules

CALLS = [
    (kind, name)
    for kind in (OwnerSchedules, Schedules, Calendars)
    for name, _ in inspect.getmembers(kind, inspect.isfunction)
    if not name.startswith("_")
]


@pytest.mark.parametrize(("kind", "name"), CALLS)
def test_only_the_scope_takes_a_session_and_an_actor(kind, name):
    parameters = inspect.signature(getattr(kind, name)).parameters

    binds = name in {"bound", "for_owner"}
    assert ({"session", "actor"} & parameters.keys()) == ({"session", "actor"} if binds else set())


@pytest.mark.parametrize(("kind", "name"), CALLS)
def test_each_list_has_the_same_size_and_a_cursor(kind, name):
    parameters = inspect.signature(getattr(kind, name)).parameters
    if "after" in parameters:
        assert (parameters["limit"].default, parameters["after"].default) == (100, None)


@pytest.mark.parametrize("name", [name for kind, name in CALLS if kind is Schedules])
def test_both_scopes_share_the_implementation_of_a_call(name):
    if hasattr(OwnerSchedules, name):
        assert getattr(OwnerSchedules, name) is getattr(Schedules, name)
