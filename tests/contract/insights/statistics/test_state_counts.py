"""The number of schedules in each state is that of the lists of these states."""

from datetime import timedelta

import pytest

from celery_dynbeat.common.filters import ScheduleFilter
from celery_dynbeat.common.states import State
from celery_dynbeat.insights.lists import state_counts
from tests.support.applications import MINUTELY, execute
from tests.support.suites import each_database


@pytest.fixture
def schedules(dynbeat, clock):
    """Create schedules in each state, of several owners."""
    given = {"trigger": MINUTELY, "task": "t"}
    for owner in ("user:1", "user:2", "held"):
        mine = dynbeat.schedules.for_owner(owner)
        for index in range(6):
            tags = ["vip"] if index % 2 else []
            mine.create(f"{owner[-1]}{index}", tags=tags, **given)
        mine.create("other", task="u", trigger=MINUTELY)
        mine.pause(f"{owner[-1]}0")
    instant = "'2026-11-21 09:00:00'"
    execute(dynbeat, f"UPDATE dynbeat_schedule SET failing_since = {instant} WHERE name LIKE '%1'")
    ended = "UPDATE dynbeat_schedule SET next_run_at = NULL"
    execute(dynbeat, f"{ended}, finished_at = {instant} WHERE name LIKE '%2'")
    execute(dynbeat, f"{ended}, error = 'x' WHERE name LIKE '%3' OR name = '14'")
    dynbeat.schedules.for_owner("held").hold(reason="unpaid")
    clock.advance(timedelta(minutes=30))
    return dynbeat.schedules


FILTERS = (
    {},
    {"owner": "user:1"},
    {"owner": "user:9"},
    {"task": "u"},
    {"tag": "vip"},
    {"name_prefix": "1"},
    {"owner": "held", "tag": "vip", "name_prefix": "d"},
)


@pytest.mark.parametrize("everything_is_held", [False, True])
@each_database
def test_each_number_is_that_of_the_list(dynbeat, schedules, everything_is_held):
    if everything_is_held:
        schedules.hold(reason="migration")

    for filters in FILTERS:
        found = state_counts(dynbeat.context, ScheduleFilter(**filters))
        given = _without(filters, "owner")
        listed = {
            state: [
                each.name
                for each in schedules.list(limit=100, state=state or None, **given)
                if filters.get("owner") in {None, each.owner}
            ]
            for state in ("", *State)
        }
        numbers = {state: len(names) for state, names in listed.items()}
        assert {state: each.count for state, each in found.items()} == numbers, filters
        assert all(each.exact for each in found.values())


def _without(filters, name):
    return {key: value for key, value in filters.items() if key != name}
