"""The values of options: what they mean, and the words of the errors."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import click
import pytest

from celery_dynbeat.api.fields import FIELDS
from celery_dynbeat.cli.base.parameters import FieldText, FloatRange, InstantParam

NOW = datetime(2026, 11, 22, 9, tzinfo=UTC)
SEOUL = ZoneInfo("Asia/Seoul")


def instant(text, *, direction=1):
    return InstantParam(direction).convert(text, None, None).resolve(now=lambda: NOW, zone=SEOUL)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5h", 5400), ("5m", 300), ("5 min", 300), ("2d", 172_800), ("PT5M", 300)],
)
def test_a_duration_is_seconds_or_a_number_with_a_unit(text, seconds):
    assert FieldText(FIELDS["max_run_time"]).convert(text, None, None) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "hour"),
    [("2026-11-22T18:00", 9), ("2026-11-22T09:00Z", 9), ("2026-11-22 10:00+01:00", 9), ("2h", 11)],
)
def test_a_time_without_an_offset_is_in_the_owners_zone(text, hour):
    assert instant(text) == NOW.replace(hour=hour)


def test_a_duration_of_a_history_counts_back_from_now():
    assert instant("2h", direction=-1) == NOW - timedelta(hours=2)


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (FieldText(FIELDS["max_run_time"]), "soon", "such as 90, 5m, 2h or 1d"),
        (FieldText(FIELDS["max_run_time"]), "1" * 20, "is not a duration"),
        (FieldText(FIELDS["max_run_time"]), "P1M", "is not a duration"),
        (InstantParam(-1), "yesterday", "a duration before now"),
        (InstantParam(1), "5 parsecs", "a duration from now"),
        (FieldText(FIELDS["args"]), "[1", "is not JSON"),
        (FieldText(FIELDS["args"]), "{}", 'is not a JSON array, such as [1, "a"]'),
        (FieldText(FIELDS["kwargs"]), "[]", "is not a JSON object, such as"),
        (FieldText(FIELDS["max_runs"]), "0", "max_runs = 0: must be a whole number from 1"),
        (FieldText(FIELDS["window"]), "0%", "more than 0%"),
    ],
)
def test_an_error_names_the_value_and_the_rule(kind, text, words):
    with pytest.raises(click.BadParameter) as error:
        kind.convert(text, None, None)
    assert words in str(error.value)


def test_a_range_of_numbers_refuses_nan():
    with pytest.raises(click.BadParameter, match="nan is not in the range 0<x<=5"):
        FloatRange(0, 5, min_open=True).convert("nan", None, None)
