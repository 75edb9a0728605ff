"""Durations and instants as people type them."""

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat import Retry
from celery_dynbeat.api.field_types import (
    format_duration,
    format_retry,
    parse_duration,
    parse_instant,
    parse_retry,
)

NOW = datetime(2026, 11, 22, 9, tzinfo=UTC)


@given(st.timedeltas(timedelta(0), timedelta(days=36_525)))
def test_a_shown_duration_is_read_back_exactly(value):
    assert parse_duration(format_duration(value)) == value


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (90, "90s"), (300, "5m"), (7200, "2h"), (172_800, "2d"), (1.5, "1.5s")],
)
def test_a_duration_is_shown_in_its_largest_whole_unit(seconds, text):
    assert format_duration(timedelta(seconds=seconds)) == text


def test_an_instant_without_an_offset_follows_the_clock_of_the_zone():
    typed = parse_instant("2026-11-22T18:00")

    assert typed.resolve(now=lambda: NOW, zone=ZoneInfo("Asia/Seoul")) == NOW


@pytest.mark.parametrize(
    "text", ["", "soon", "9" * 5000, "1e9", "-5m", "P1M", "2026-13-01", "\x00"]
)
def test_other_text_is_a_value_error_that_shows_an_example(text):
    with pytest.raises(ValueError, match="such as"):
        parse_duration(text)
    with pytest.raises(ValueError, match="2026-11-22T09:00"):
        parse_instant(text)


@given(
    st.builds(
        Retry,
        max_retries=st.integers(0, 100),
        backoff=st.timedeltas(timedelta(seconds=1), timedelta(days=9)),
        factor=st.floats(1, 100),
        backoff_max=st.none() | st.timedeltas(timedelta(days=9), timedelta(days=36_525)),
        until_next_fire=st.booleans(),
    )
)
def test_a_shown_retry_policy_is_read_back_exactly(policy):
    assert parse_retry(format_retry(policy)) == policy


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("3", Retry(max_retries=3)),
        ("0", Retry(max_retries=0)),
        (
            " max_retries = 3 ,backoff=5m,  factor=1.5 ",
            Retry(max_retries=3, backoff=300, factor=1.5),
        ),
        ("3 backoff-max=1h", Retry(max_retries=3, backoff_max=3600)),
        ("3, until_next_fire=yes", Retry(max_retries=3, until_next_fire=True)),
    ],
)
def test_a_retry_policy_is_a_number_or_arguments(text, policy):
    assert parse_retry(text) == policy
    assert parse_retry(format_retry(policy)) == policy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a number: write how many retries, such as 3"),
        ("often", "'often' is not a number"),
        ("3, max_retries=4", "max_retries is given twice"),
        ("backoff=5m", "max_retries is missing"),
        ("3, backoff=soon", "'soon' is not a duration"),
        ("3, until_next_fire=perhaps", "write yes or no"),
        ("3, bakoff=5m", "did you mean backoff?"),
        ("3, factor=nan", "must be a number from 1 to 100"),
        ("9" * 5000, "max_retries = "),
    ],
)
def test_another_text_of_a_retry_policy_is_a_value_error(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_retry(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("17:30", "2026-11-22T17:30+09:00"), ("18:30", "2026-11-21T18:30+09:00")],
)
def test_a_time_of_day_is_the_last_one_on_the_clock_of_the_zone(text, expected):
    found = parse_instant(text, direction=-1).resolve(now=lambda: NOW, zone=ZoneInfo("Asia/Seoul"))

    assert found == datetime.fromisoformat(expected)
    with pytest.raises(ValueError, match="is not a time"):
        parse_instant(text)
