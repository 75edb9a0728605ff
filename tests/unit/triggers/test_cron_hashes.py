"""A key selects the values of each H. They never change, and keys are distributed evenly."""

import math
from collections import Counter
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers import AnyOf, Cron, Every, parse_trigger
from celery_dynbeat.triggers.cron.expression import parse_expression, resolve_hashes
from tests.unit.triggers import expressions

START = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = [f"user:{number}/digest" for number in range(6000)]


def bound(expression: str, key: str) -> str:
    return Cron(expression).hashed_by(key).expression


def chi_square(counts: Counter[tuple[int, ...]], cells: int) -> float:
    even = counts.total() / cells
    empty = (cells - len(counts)) * even
    return sum((count - even) ** 2 / even for count in counts.values()) + empty


@pytest.mark.parametrize(
    ("expression", "key", "expected"),
    [
        ("H H * * *", "user:42/digest", "27 17 * * *"),
        ("H/15 H(22-4) * H * H", "user:42/digest", "6-59/15 1 * 8 * 22"),
        ("30,H(0-9),H(10-19) * * H(1-6)/2 * H", "\ud800 \0", "30,8,11 * * 1-6/2 * 30"),
    ],
)
def test_the_values_of_a_key_never_change(expression, key, expected):
    assert bound(expression, key) == expected


@pytest.mark.parametrize(
    ("expression", "outcomes"),
    [
        ("h(7-9)", [(7,), (8,), (9,)]),
        ("h(7-7)", [(7,)]),
        ("h/30", [(start, start + 30) for start in range(30)]),
        ("h(0-29)/10", [(start, start + 10, start + 20) for start in range(10)]),
        # A short last step, and a step longer than the range.
        ("h(0-6)/4", [(0, 4), (1, 5), (2, 6), (3,)]),
        ("h(0-3)/15", [(0,), (1,), (2,), (3,)]),
        # A range that wraps at the end of the field.
        ("h(58-1)/2", [(0, 58), (1, 59)]),
        ("h/60", [(start,) for start in range(60)]),
    ],
)
def test_each_key_selects_an_outcome_and_each_outcome_is_selected(expression, outcomes):
    fields = parse_expression(f"{expression} * * * *")
    picked = {parse_expression(resolve_hashes(key, fields)).minute.values for key in KEYS[:1200]}

    assert picked == set(outcomes)


@pytest.mark.parametrize(
    ("expression", "cells"),
    [
        *(("H 0 1 1 *", 60), ("0 H 1 1 *", 24), ("0 0 H * *", 28), ("0 0 1 H *", 12)),
        *(("0 0 * * H", 7), ("0 0 1 1 * H", 60), ("0 0 H(1-31) * *", 31), ("0 0 * * H(1-5)", 5)),
        *(("H(0-29) 0 1 1 *", 30), ("H/15 0 1 1 *", 15), ("H(0-29)/10 0 1 1 *", 10)),
        # Two H are independent, in two fields and in one list.
        *(("H H * * *", 1440), ("0 0 H H *", 336), ("H(0-9),H(10-19) 0 1 1 *", 100)),
    ],
)
def test_keys_are_distributed_evenly(expression, cells):
    hashed = parse_expression(expression)
    picked = (parse_expression(resolve_hashes(key, hashed)) for key in KEYS)
    parts = expression.split()
    counts = Counter(
        tuple(
            field.values[: len(text.split(","))]
            for field, text in zip(fields.fields, parts, strict=True)
            if "H" in text
        )
        for fields in picked
    )

    # The mean of chi-square is the degrees of freedom, its variance twice that.
    freedom = cells - 1
    assert chi_square(counts, cells) < freedom + 4 * math.sqrt(2 * freedom)


@given(expression=expressions.hashed(), key=st.text(max_size=300), day_or=st.booleans())
def test_an_accepted_expression_is_valid_with_every_key(expression, key, day_or):
    try:
        trigger = Cron(expression, day_or=day_or)
    except InvalidTriggerError:
        return
    picked = trigger.hashed_by(key)

    assert "h" not in picked.expression
    assert parse_trigger("cron", picked.spec) == picked
    assert picked.next_after(START) > START


@pytest.mark.parametrize(
    "trigger",
    [
        Cron("H H * * *", timezone="Asia/Seoul"),
        AnyOf(Cron("H * * * *"), Every(7200, anchor=datetime(2026, 1, 1, tzinfo=UTC))),
        Cron("H H * * *").excluding(date(2026, 11, 22)),
    ],
    ids=repr,
)
def test_bound_to_keeps_the_text_and_has_the_fire_times_of_the_key(trigger):
    tied, picked = trigger.bound_to("user:42/digest"), trigger.hashed_by("user:42/digest")
    start = datetime(2026, 11, 21, 9, tzinfo=UTC)
    span = {"after": start, "until": start + timedelta(days=9)}

    assert (tied.spec, tied.describe()) == (trigger.spec, trigger.describe())
    assert tied == trigger.bound_to("user:42/digest") != trigger.bound_to("user:43/digest")
    assert tied != trigger
    assert tied.next_after(start) == picked.next_after(start) != trigger.next_after(start)
    assert tied.latest_until(**span) == picked.latest_until(**span)
    assert tied.count_until(**span, limit=50) == picked.count_until(**span, limit=50)
    assert tied.hashed_by("another") == trigger.hashed_by("another")
