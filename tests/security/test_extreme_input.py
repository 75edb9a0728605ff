"""Extreme input raises a DynbeatError within the bounds, and changes no row."""

import itertools
import re

import pytest

from celery_dynbeat import (
    DynbeatError,
    InvalidArgumentError,
    InvalidTriggerError,
    Trigger,
)
from tests.security import hostile_values
from tests.security.bounds import MEGABYTES, attempt, megabytes_of
from tests.security.lookalikes import everything
from tests.support.applications import MINUTELY
from tests.support.property_application import prepared_application

# The tests bound CPU time, which the tracer of coverage multiplies.
pytestmark = pytest.mark.no_cover

#: A string may be a trigger; its error names the field of the trigger.
REJECTIONS = InvalidArgumentError


@pytest.fixture
def populated(sqlite_url, clock):
    """Return an owner with one schedule, and the application. No statement has a refused value."""
    with prepared_application(sqlite_url, clock=clock) as dynbeat:
        mine = dynbeat.schedules.for_owner("user:1")
        mine.create("n", task="t", trigger=MINUTELY)
        yield dynbeat, mine


def of_fields():
    return [(field, value) for field, values in hostile_values.FIELDS.items() for value in values]


def test_no_field_accepts_an_extreme_value(populated):
    dynbeat, mine = populated
    before = everything(dynbeat)
    known = {"name": "new", "task": "t", "trigger": MINUTELY}

    for field, value in of_fields():
        # The fields may come from a form: unknown keys are tried too.
        changed = attempt(mine.update, "n", **{field: value})
        assert isinstance(changed, REJECTIONS), (field[:20], type(value))
        made = attempt(mine.create, **{**known, field: value})
        assert isinstance(made, REJECTIONS), (field[:20], type(value))
        if field != "owner":
            many = attempt(dynbeat.schedules.create_many, [{**known, field: value}])
            assert isinstance(many, REJECTIONS), (field[:20], type(value))

    assert everything(dynbeat) == before


def test_no_argument_accepts_an_extreme_value(populated):
    dynbeat, mine = populated
    before = everything(dynbeat)

    for name, (call, values) in hostile_values.CALLS.items():
        for value in values:
            rejection = attempt(call, mine, value)
            assert isinstance(rejection, DynbeatError), (name, type(value))
            # What an end user reads is short, and names no call, argument or setting.
            assert len(rejection.user_message) <= 120
            is_plain = re.search(r"[_=()`]|dynbeat", rejection.user_message) is None
            assert is_plain or rejection.code == "choice"

    assert everything(dynbeat) == before


def test_no_trigger_accepts_an_extreme_value():
    for name, (make, values) in hostile_values.TRIGGERS.items():
        for value in values:
            rejection = attempt(make, value)
            assert isinstance(rejection, InvalidTriggerError), (name, type(value))


def test_create_many_rejects_values_that_are_not_lists_of_schedules(populated):
    create_many = populated[0].schedules.create_many

    for many in (
        None,
        5,
        "text",
        hostile_values.DEEP,
        [hostile_values.Hostile()],
        [hostile_values.HostileDict()],
    ):
        assert isinstance(attempt(create_many, many), InvalidArgumentError)


@pytest.mark.parametrize("field", ["args", "kwargs", "options", "description", "tags", "task"])
def test_an_extreme_value_takes_little_memory(field, sqlite_url, clock):
    large = [
        hostile_values.LONG,
        hostile_values.WIDE,
        hostile_values.DEEP,
        hostile_values.DOUBLED,
        hostile_values.CIRCULAR,
    ]
    inside = [[value] for value in (*large, hostile_values.HUGES, hostile_values.MANY)]
    with prepared_application(sqlite_url, clock=clock) as dynbeat:
        mine = dynbeat.schedules.for_owner("user:1")
        mine.create("n", task="t", trigger=MINUTELY)

        for value in (*large, *inside, *({"headers": {"a": each}} for each in inside)):
            assert megabytes_of(mine.update, "n", **{field: value}) < MEGABYTES


def test_an_extreme_query_takes_little_memory(sqlite_url, clock):
    with prepared_application(sqlite_url, clock=clock) as dynbeat:
        mine = dynbeat.schedules.for_owner("user:1")

        for value in (
            hostile_values.LONG,
            hostile_values.WIDE,
            hostile_values.DEEP,
            hostile_values.DOUBLED,
        ):
            for question in (mine.get, mine.runs, dynbeat.schedules.for_owner, Trigger.from_json):
                assert megabytes_of(question, value) < MEGABYTES
            assert megabytes_of(mine.list, after=value) < MEGABYTES


def test_a_suggestion_compares_only_the_start_of_a_long_field_name(populated):
    _, mine = populated

    rejection = attempt(mine.update, "n", descripton="x")

    assert "did you mean description" in str(rejection)


def test_slightly_and_far_too_large_payloads_have_the_same_error(populated):
    _, mine = populated

    for length, expected in ((70_000, "are 70014 bytes"), (1_000_000, "are more than 65536 bytes")):
        rejection = attempt(mine.update, "n", args=["x" * length])

        assert rejection.field == "args"
        assert f"{expected} as JSON, but dynbeat_max_payload_bytes allows 65536" in str(rejection)


def test_invalid_arguments_are_rejected_in_pairs_too(populated):
    dynbeat, mine = populated
    before = everything(dynbeat)
    pairs = itertools.combinations(["task", "args", "tags", "description", "window"], 2)

    for one, other in pairs:
        fields = {one: hostile_values.FIELDS[one][0], other: hostile_values.FIELDS[other][0]}
        assert isinstance(attempt(mine.update, "n", **fields), InvalidArgumentError)

    assert everything(dynbeat) == before


@pytest.mark.parametrize("kind", hostile_values.COSTLY)
def test_a_trigger_that_is_costly_to_plan_is_rejected_with_its_cost_the_rule_and_the_fix(
    populated, kind
):
    _, mine = populated

    def create():
        return mine.create("new", task="t", trigger=hostile_values.COSTLY[kind]())

    rejection = attempt(create)

    assert isinstance(rejection, InvalidTriggerError | InvalidArgumentError)
    assert "too costly" in str(rejection)
    assert " steps" in str(rejection)
    assert "or make several schedules" in str(rejection)
    assert [each.name for each in mine.list()] == ["n"]
