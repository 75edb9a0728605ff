"""The schedules that a form names, and what an action on them reports."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import OperationalError

from celery_dynbeat.common.errors import InvalidArgumentError, NotFoundError
from celery_dynbeat.flower.actions import (
    ACTIONS,
    MAX_SELECTED,
    ScheduleKey,
    decode,
    encode,
    for_each,
    report,
)

KEYS = [ScheduleKey("user:1", name) for name in "abc"]


@given(st.text(), st.text())
def test_any_owner_and_name_are_read_as_they_were(owner, name):
    assert decode([encode(owner, name)]) == [ScheduleKey(owner, name)]


@pytest.mark.parametrize(
    "values",
    [
        [],
        ["x"],
        ['["a"]'],
        ['["a", 1]'],
        ['{"a": 1, "b": 2}', "[[], []]"],
        ["[" * 100_000],
        ["null"],
        ['["", "\\ud800"]'],
        [json.dumps(["", str(number)]) for number in range(MAX_SELECTED + 1)],
    ],
)
def test_other_values_are_refused(values):
    with pytest.raises(InvalidArgumentError) as caught:
        decode(values)

    assert caught.value.field == "schedule"
    assert len(str(caught.value)) < 300


def failing_with(errors):
    def call(key):
        if key.name in errors:
            raise errors[key.name]

    return call


def test_a_schedule_that_fails_does_not_stop_the_others():
    gone = NotFoundError("schedule", "b", owner="user:1")

    message = report(for_each(KEYS, failing_with({"b": gone})), ACTIONS["pause"])

    assert message.kind == "warning"
    assert message.text.startswith("Paused 2 of 3 schedules. “b of user:1”: owner 'user:1' has no")


def test_an_error_of_the_database_ends_the_loop_and_shows_no_details():
    down = OperationalError("UPDATE secret", {}, Exception("host db1"))

    message = report(for_each(KEYS, failing_with({"b": down})), ACTIONS["delete"])

    assert message.text == (
        "Deleted 1 of 3 schedules. “b of user:1”: The database cannot be used. The log of Flower"
        " contains the error. 1 schedule not tried."
    )
