"""A plain value is copied as a round trip through JSON would copy it."""

import json
import math
from enum import IntEnum, StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat.api.checks import check_json, copy_plain
from celery_dynbeat.common.errors import InvalidArgumentError

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


class Text(StrEnum):
    """A text of a subclass."""

    A = "a"


class Number(IntEnum):
    """An integer of a subclass."""

    ONE = 1


class NumberedList(list):
    """A list of a subclass."""


def typed(value):
    """Return the value with the type of each part: 1, 1.0 and True are equal in Python."""
    if isinstance(value, list):
        return ["list", *map(typed, value)]
    if isinstance(value, dict):
        return ["dict", *((key, typed(each)) for key, each in value.items())]
    return type(value), repr(value)


@given(values)
def test_a_copy_equals_the_round_trip_through_json(value):
    found = copy_plain(value)

    if found is not None:
        assert typed(found[0]) == typed(json.loads(json.dumps(value, allow_nan=False)))


@given(values)
def test_a_check_accepts_the_same_values_as_the_round_trip(value):
    if copy_plain(value) is not None:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


def test_a_copy_shares_no_list_and_no_dict():
    value = {"a": [1], "b": {"c": 2}, "d": []}

    copy = check_json("kwargs", value)

    assert copy == value
    assert not {id(copy), *map(id, copy.values())} & {id(value), *map(id, value.values())}


@pytest.mark.parametrize(
    "value",
    [
        *(math.nan, math.inf, 10**400, 2**63, "\ud800", "ü", "x" * 1_001, Text.A, Number.ONE),
        *((1,), NumberedList(), {1: 2}, {"ü": 1}, {Text.A: 1}, [[[]]], [0] * 33, Ellipsis),
    ],
    ids=repr,
)
def test_another_value_takes_the_round_trip(value):
    assert copy_plain(value) is None
    assert copy_plain([value]) is None
    assert copy_plain({"a": value}) is None


@pytest.mark.parametrize("value", [math.nan, "\ud800", Ellipsis], ids=repr)
def test_an_invalid_value_is_rejected(value):
    with pytest.raises(InvalidArgumentError, match="must be plain JSON"):
        check_json("args", [value])
