"""What all calls of the API have in common."""

import inspect

import pytest

from celery_dynbeat.api import Calendars, OwnerSchedules, Schedules

READS = {
    *("alerts", "changes", "count", "count_runs", "export"),
    *("for_owner", "get", "get_batch", "get_run", "holds", "list", "preview", "runs"),
    *("explain", "forecast", "quiet_hours", "timezone", "upcoming", "usage"),
}
CALLS = [
    (kind, name)
    for kind in (OwnerSchedules, Schedules, Calendars)
    for name, _ in inspect.getmembers(kind, inspect.isfunction)
    if not name.startswith("_")
]


@pytest.mark.parametrize(("kind", "name"), CALLS)
def test_each_change_takes_an_actor_and_a_reason(kind, name):
    parameters = inspect.signature(getattr(kind, name)).parameters

    assert ({"actor", "reason"} <= parameters.keys()) is (name not in READS)


@pytest.mark.parametrize(("kind", "name"), CALLS)
def test_each_list_has_the_same_size_and_a_cursor(kind, name):
    parameters = inspect.signature(getattr(kind, name)).parameters
    if "after" in parameters:
        assert (parameters["limit"].default, parameters["after"].default) == (100, None)


@pytest.mark.parametrize("name", [name for kind, name in CALLS if kind is Schedules])
def test_both_scopes_share_the_implementation_of_a_call(name):
    if hasattr(OwnerSchedules, name):
        assert getattr(OwnerSchedules, name) is getattr(Schedules, name)
