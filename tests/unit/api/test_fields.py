"""Checks of the fields of a schedule, and the text of stored errors."""

from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat import InvalidArgumentError
from celery_dynbeat.api import fields
from celery_dynbeat.worker.outcomes import storable_text


def columns(**given):
    return fields.to_columns(given, limit=1_000)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({"args": (1, (2, 3))}, {"args": [1, [2, 3]]}),
        ({"kwargs": {"a": "ü🎉"}}, {"kwargs": {"a": "ü🎉"}}),
        ({"expires_after": timedelta(minutes=1)}, {"expires_after": 60.0}),
        ({"catch_up_window": 5}, {"catch_up_window": 5.0}),
        ({"window": timedelta(minutes=1)}, {"window": 60.0}),
        ({"window": 0}, {"window": 0.0}),
        ({"window": "50.0 %"}, {"window": "50%"}),
        ({"window": None, "overlap": None}, {"window": None, "overlap": None}),
        (
            {"overlap": "buffer_one", "on_lost": "rerun"},
            {"overlap": "buffer_one", "on_lost": "rerun"},
        ),
        ({"pause_after_failures": 0}, {"pause_after_failures": 0}),
        ({"retry": None}, {"retry": None}),
        (
            {"retry": {"max_retries": 3, "backoff": timedelta(minutes=5)}},
            {"retry": {"max_retries": 3, "backoff": 300.0, "factor": 2.0}},
        ),
        ({"catch_up": None, "max_runs": None}, {"catch_up": None, "max_runs": None}),
        ({"tags": ("b", "a", "a")}, {"tags": ["a", "b"]}),
        ({"start_at": datetime(2026, 1, 1, tzinfo=UTC)},) * 2,
    ],
)
def test_a_field_is_converted_to_its_column(given, stored):
    assert columns(**given) == stored


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kwargs", {"a": datetime(2026, 1, 1, tzinfo=UTC)}),
        ("window", "0%"),
        ("window", "5m"),
        ("retry", {"max_retries": 3, "backoff": 0}),
        ("pause_after_failures", 1.5),
        ("expires_after", "soon"),
        ("tags", ["x" * 65]),
        ("tags", [str(number) for number in range(33)]),
    ],
)
def test_an_invalid_value_is_rejected_with_its_field(field, value):
    with pytest.raises(InvalidArgumentError) as caught:
        columns(**{field: value})

    assert caught.value.field == field


def test_the_payload_limit_counts_bytes():
    with pytest.raises(InvalidArgumentError, match="dynbeat_max_payload_bytes"):
        columns(args=["ü" * 500])

    assert columns(args=["u" * 500])


def test_the_payload_limit_counts_the_stored_values_too():
    current = {"args": ["a" * 600], "kwargs": {}, "options": {}}

    with pytest.raises(InvalidArgumentError, match="dynbeat_max_payload_bytes") as caught:
        fields.to_columns({"options": {"headers": {"h": "x" * 500}}}, limit=1_000, current=current)

    assert caught.value.field == "options"
    assert fields.to_columns({"args": [], "kwargs": {"a": "x" * 900}}, limit=1_000, current=current)
    assert fields.to_columns({"max_runs": 3}, limit=10, current=current) == {"max_runs": 3}


@pytest.mark.parametrize(
    ("given", "merged"),
    [
        ({}, {}),
        ({"queue": "b"}, {"options": {"queue": "b", "shadow": "s"}}),
        ({"options": {}}, {"options": {}}),
        ({"options": {"queue": "c"}, "priority": 1}, {"options": {"queue": "c", "priority": 1}}),
    ],
)
def test_queue_and_priority_are_merged_into_the_options(given, merged):
    assert fields.merge_options({"queue": "a", "shadow": "s"}, given) == merged


@pytest.mark.parametrize(
    ("text", "length", "stored"),
    [
        ("plain", 5, "plain"),
        ("too long", 6, "too..."),
        ("nul \x00 here", 20, "nul \\x00 here"),
        ("lone \ud800", 20, "lone \\ud800"),
        ("🎉🎉", 2, "🎉🎉"),
    ],
)
def test_a_stored_error_contains_only_characters_that_each_database_accepts(text, length, stored):
    assert storable_text(text, length) == stored


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        ("kwags", "did you mean kwargs"),
        ("timezone", "belongs to the trigger"),
        ("expires", "expires_after"),
        ("enabled", "pause"),
        ("countdown", "options"),
        ("xyzzy", "known fields are args, "),
    ],
)
def test_an_unknown_field_is_rejected_with_a_hint(field, hint):
    with pytest.raises(InvalidArgumentError, match=hint):
        columns(**{field: 1})
