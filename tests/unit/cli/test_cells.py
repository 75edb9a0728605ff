"""How the commands write values: nothing in them can control the terminal."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from celery_dynbeat.cli.base.cells import plain
from celery_dynbeat.common.text import escape, format_duration

NOW = datetime(2026, 11, 22, 9, tzinfo=UTC)
SEOUL = ZoneInfo("Asia/Seoul")


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain é 한 😀", "plain é 한 😀"),
        ("\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("two\nlines\ttab\r", "two\\nlines\\ttab\\r"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u2028\ud800", "\\u2028\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        # A joined emoji stays as it is.
        ("👩\u200d💻", "👩\u200d💻"),
    ],
)
def test_control_and_direction_characters_are_escaped(text, escaped):
    assert escape(text) == escaped


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "yes"),
        (NOW.astimezone(SEOUL), "2026-11-22T09:00:00Z"),
        (timedelta(minutes=1, milliseconds=250), "60.25"),
        (["a", "b\t"], '["a", "b\\t"]'),
        ({}, ""),
    ],
)
def test_programs_read_instants_in_utc_and_seconds(value, text):
    assert plain(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "250 ms"),
        (1.25, "1.25 s"),
        (90, "90 s"),
        (300, "5 min"),
        (10_800, "3 h"),
        (864_000, "10 d"),
    ],
)
def test_a_duration_is_shown_in_a_fitting_unit(seconds, text):
    assert format_duration(timedelta(seconds=seconds)) == text
