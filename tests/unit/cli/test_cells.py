"""How the commands write values: nothing in them can control the terminal."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from celery_dynbeat.cli.base.cells import both_times, plain, readable
from celery_dynbeat.common.text import escape, format_distance, format_duration

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


def test_people_read_instants_in_the_zone_and_durations_in_units():
    assert readable(NOW, SEOUL) == "2026-11-22 18:00:00"
    assert readable(("a", "b"), SEOUL) == "a, b"
    assert readable(timedelta(hours=3), SEOUL) == "3 h"


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


def test_a_sentence_has_the_local_time_with_its_offset_and_the_utc_time():
    shown = both_times(NOW, SEOUL, now=NOW - timedelta(minutes=5))
    assert shown == "2026-11-22 18:00:00+09:00 (2026-11-22 09:00:00 UTC), in 5 min"
    assert both_times(NOW, ZoneInfo("UTC"), now=NOW) == "2026-11-22 09:00:00 UTC, now"
    assert format_distance(NOW, now=NOW + timedelta(hours=2)) == "2 h ago"
