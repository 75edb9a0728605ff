"""The texts of the form become arguments, or an error at a field. No text raises."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat.api.texts import Parsing, parse
from celery_dynbeat.flower.editor.form import EMPTY, LABELS, POLICIES, check_names

NOW = datetime(2026, 11, 22, 9, tzinfo=UTC)
SEOUL = Parsing(zone=ZoneInfo("Asia/Seoul"), limit=65_536, now=lambda: NOW)
HOSTILE = st.sampled_from(
    [
        *("\x00", "\ud800", "\u202e", "9" * 10_000, "[" * 100_000, '{"a":' * 5_000, "1e400"),
        *("NaN", "-1", "0", "P" + "9" * 400 + "Y", "9999-12-31T23:59:59-12:00", "* * * * *" * 999),
        *("0001-01-01T00:00+14:00", "R/0001-01-01T00:00:00Z/PT1S", "../../etc/passwd", "\n", " "),
        *("TZ=UTC", "TZ= 5m", "in ", "in 9999999d", "2026-12-24T25:00", "TZ=localtime 0 9 * * *"),
        *("(" * 5_000, "0 9 * * * except ", "5m or ", "calendar x", "FREQ=SECONDLY", "sunrise 1"),
    ]
)
TEXTS = HOSTILE | st.text(max_size=60)


def parsed(**texts):
    return parse({**EMPTY, **texts}, stored=EMPTY, by=SEOUL)


@given(st.dictionaries(st.sampled_from([*LABELS]), TEXTS))
def test_any_texts_are_arguments_or_errors_of_fields(texts):
    result = parse({**EMPTY, **texts}, stored={}, by=SEOUL)

    assert result.errors.keys() <= LABELS.keys()
    assert all(result.errors.values())
    arguments = {name if name != "trigger" else "rule" for name in result.changes}
    assert arguments | result.errors.keys() == LABELS.keys()


def test_a_text_that_nobody_edited_is_not_parsed():
    stored = {**EMPTY, "rule": "full moon", "window": "\x00"}

    assert parse(stored, stored=stored, by=SEOUL).changes == {}
    edited = parse({**stored, "task": "t"}, stored=stored, by=SEOUL)
    assert (edited.changes, edited.errors) == ({"task": "t"}, {})


def test_a_field_that_the_form_does_not_have_is_not_changed():
    assert parse({"description": "x"}, stored=EMPTY, by=SEOUL).changes == {"description": "x"}


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("args", '[1, "a"]', [1, "a"]),
        ("kwargs", ' {"a": null} ', {"a": None}),
        ("tags", " a \n\nb,c", ["a", "b,c"]),
        ("priority", " 7 ", 7),
        ("window", "1.5m", timedelta(seconds=90)),
        ("window", "50 %", "50%"),
        ("start_at", "2026-11-30T09:00", datetime(2026, 11, 30, tzinfo=UTC)),
        ("end_at", "2h", NOW + timedelta(hours=2)),
        ("overlap", "skip", "skip"),
        ("max_runs", "3", 3),
        ("queue", " mail ", "mail"),
    ],
)
def test_a_text_becomes_the_argument(field, text, value):
    result = parsed(**{field: text})

    assert (result.changes, result.errors) == ({field: value}, {})


@pytest.mark.parametrize("field", [*(policy.name for policy in POLICIES), "queue", "priority"])
def test_an_empty_field_returns_to_the_default(field):
    result = parse({field: " "}, stored={field: "x"}, by=SEOUL)

    assert result.changes == {field: None}


def test_names_of_a_new_schedule_are_checked():
    assert check_names("", "digest") == {}
    assert check_names("\n", "").keys() == {"owner", "name"}
