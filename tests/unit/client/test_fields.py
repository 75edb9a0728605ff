"""The form in which fields are stored, and outcomes that every database takes."""

from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat import InvalidScheduleError
from celery_dynbeat.client import fields
from celery_dynbeat.worker.outcome_recorder import storable_text


def columns(**given):
    return fields.to_columns(given, limit=1_000)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({"args": (1, (2, 3))}, {"args": [1, [2, 3]]}),
        ({"kwargs": {"a": "ü🎉"}}, {"kwargs": {"a": "ü🎉"}}),
        ({"expires_after": timedelta(minutes=1)}, {"expires_after": 60.0}),
        ({"catch_up_window": 5}, {"catch_up_window": 5.0}),
        ({"jitter": timedelta(minutes=1)}, {"jitter": 60.0}),
        ({"jitter": 0}, {"jitter": 0.0}),
        ({"jitter": None, "overlap": None}, {"jitter": None, "overlap": None}),
        (
            {"overlap": "buffer_one", "on_lost": "rerun"},
            {"overlap": "buffer_one", "on_lost": "rerun"},
        ),
        ({"pause_after_failures": 0}, {"pause_after_failures": 0}),
        ({"catch_up": None, "max_runs": None}, {"catch_up": None, "max_runs": None}),
        ({"tags": ("b", "a", "a")}, {"tags": ["a", "b"]}),
        ({"start_at": datetime(2026, 1, 1, tzinfo=UTC)},) * 2,
    ],
)
def test_a_field_is_stored_in_the_form_of_the_table(given, stored):
    assert columns(**given) == stored


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("args", {1}),
        ("args", b"x"),
        ("args", ["\ud800"]),
        ("kwargs", {"a": datetime(2026, 1, 1, tzinfo=UTC)}),
        ("kwargs", [1]),
        ("max_runs", True),
        ("max_runs", 2**31),
        ("catch_up_window", float("nan")),
        ("catch_up_window", 0.5),
        ("jitter", -1),
        ("jitter", True),
        ("overlap", "sometimes"),
        ("max_run_time", 0),
        ("on_lost", "forget"),
        ("pause_after_failures", -1),
        ("pause_after_failures", 1.5),
        ("catch_up_window", float("inf")),
        ("expires_after", "soon"),
        ("description", "nul \x00"),
        ("tags", [""]),
        ("tags", ["x" * 65]),
        ("tags", [str(number) for number in range(33)]),
        ("start_at", "2026-01-01T00:00:00Z"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_its_field(field, value):
    with pytest.raises(InvalidScheduleError) as caught:
        columns(**{field: value})

    assert caught.value.field == field


def test_an_error_shows_only_the_beginning_of_a_long_value():
    with pytest.raises(InvalidScheduleError) as caught:
        columns(description="x" * 5_000)

    assert len(str(caught.value)) < 300


def test_the_size_of_a_payload_is_counted_in_bytes():
    with pytest.raises(InvalidScheduleError, match="dynbeat_max_payload_bytes"):
        columns(args=["ü" * 500])

    assert columns(args=["u" * 500])


def test_a_payload_is_as_large_as_all_that_will_be_sent():
    current = {"args": ["a" * 600], "kwargs": {}, "options": {}}

    with pytest.raises(InvalidScheduleError, match="dynbeat_max_payload_bytes") as caught:
        fields.to_columns({"options": {"headers": {"h": "x" * 500}}}, limit=1_000, current=current)

    assert caught.value.field == "options"
    assert fields.to_columns({"args": [], "kwargs": {"a": "x" * 900}}, limit=1_000, current=current)
    assert fields.to_columns({"max_runs": 3}, limit=10, current=current) == {"max_runs": 3}


def test_an_options_priority_is_no_flag():
    with pytest.raises(InvalidScheduleError) as caught:
        columns(options={"priority": True})

    assert caught.value.field == "options['priority']"


@pytest.mark.parametrize(
    ("given", "merged"),
    [
        ({}, {}),
        ({"queue": "b"}, {"options": {"queue": "b", "shadow": "s"}}),
        ({"options": {}}, {"options": {}}),
        ({"options": {"queue": "c"}, "priority": 1}, {"options": {"queue": "c", "priority": 1}}),
    ],
)
def test_queue_and_priority_are_short_for_options(given, merged):
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
def test_an_error_is_stored_in_characters_that_every_database_takes(text, length, stored):
    assert storable_text(text, length) == stored


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        ("kwags", "did you mean kwargs"),
        ("timezone", "belongs to the trigger"),
        ("expires", "expires_after"),
        ("enabled", "pause"),
        ("xyzzy", "known are args"),
    ],
)
def test_an_unknown_field_is_refused_with_where_it_is(field, hint):
    with pytest.raises(InvalidScheduleError, match=hint):
        columns(**{field: 1})
