"""Durations in messages."""

from datetime import timedelta

import pytest

from celery_dynbeat.common.text import format_seconds, shorten


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (timedelta(seconds=60), "60 s"),
        (timedelta(), "0 s"),
        (timedelta(seconds=150), "150 s"),
        (timedelta(days=100_000), "8640000000 s"),
        (timedelta(milliseconds=500), "0.5 s"),
        (timedelta(microseconds=1), "0.000001 s"),
        (timedelta(seconds=-1.5), "-1.5 s"),
        (timedelta(microseconds=-1), "-0.000001 s"),
    ],
)
def test_a_limit_is_exact_in_seconds(value, text):
    assert format_seconds(value) == text
    assert shorten(value) == text
    assert shorten([value]) == f"[{text}]"


@pytest.mark.parametrize("value", [timedelta.min, timedelta.max])
def test_any_timedelta_can_be_shown(value):
    assert len(shorten(value)) < 80
