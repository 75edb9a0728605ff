"""The window of the timeline comes from its URL; a wrong one is named with its rule."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from celery_dynbeat import InvalidArgumentError
from celery_dynbeat.flower.pages.timeline import time_window

NOW = datetime(2026, 11, 22, 9, tzinfo=UTC)
SEOUL = ZoneInfo("Asia/Seoul")


def window(name="", since="", until=""):
    return time_window(name=name, since=since, until=until, zone=SEOUL, now=NOW)


def test_the_default_is_an_hour_with_now_in_the_middle():
    half = timedelta(minutes=30)
    found = window()
    assert (found.name, found.since, found.until) == ("1h", NOW - half, NOW + half)


def test_a_fixed_window_without_an_offset_is_in_the_zone_of_the_page():
    found = window(since="2026-11-22T09:00", until="2026-11-22T10:00")
    assert (found.name, found.since, found.until) == (
        "",
        datetime(2026, 11, 22, 0, tzinfo=UTC),
        datetime(2026, 11, 22, 1, tzinfo=UTC),
    )


def test_a_shifted_window_is_fixed_and_has_the_same_length():
    found = window("6h").shifted(-0.5)
    assert (found.name, found.since, found.until) == ("", NOW - timedelta(hours=6), NOW)


@pytest.mark.parametrize(
    ("arguments", "field", "rule"),
    [
        ({"name": "2h"}, "window", "must be one of 15m, 1h, 6h, 1d, 1w, 4w"),
        ({"since": "x", "until": "2026-11-22T10:00"}, "since", "is not a time: write"),
        ({"since": "2026-11-22T10:00"}, "until", "is not a time: write"),
        ({"since": "2026-11-22T10:00", "until": "2026-11-22T10:00"}, "until", "must be after"),
        ({"since": "2026-01-01", "until": "2026-03-01"}, "until", "at most 35 days"),
        ({"since": "0001-01-01T00:00", "until": "0001-01-01T01:00"}, "since", "since: "),
        ({"name": "x" * 10_000}, "window", "must be one of"),
    ],
)
def test_a_wrong_window_names_the_argument_and_the_rule(arguments, field, rule):
    with pytest.raises(InvalidArgumentError, match=rule) as raised:
        window(**arguments)
    assert raised.value.field == field
    assert len(str(raised.value)) < 300
