"""Durations and instants as people type them."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat.api.typed_text import format_duration, parse_duration, parse_instant

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
