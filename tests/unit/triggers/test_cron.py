"""The meaning of cron expressions, and which ones are rejected."""

import re
from datetime import UTC, datetime

import pytest

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers import Cron, parse_trigger

REFUSED = [
    ("60 * * * *", "minute", "0 to 59"),
    ("-1 * * * *", "minute", "not a number"),
    ("*/0 * * * *", "minute", "step 0"),
    ("h/61 * * * *", "minute", "use Every"),
    ("1-2-3 * * * *", "minute", "not a number"),
    ("*-5 * * * *", "minute", "takes no range"),
    ("1,,2 * * * *", "minute", "not a number"),
    ("1.5 * * * *", "minute", "not a number"),
    ("\u0663 * * * *", "minute", "not a number"),
    ("r * * * *", "minute", "write H"),
    ("R/15 * * * *", "minute", "write H"),
    ("0 r(0-5) * * *", "hour", "write H"),
    ("h5 * * * *", "minute", "a form of H"),
    ("h(5) * * * *", "minute", "a form of H"),
    ("h-5 * * * *", "minute", "a form of H"),
    ("h(0-60) * * * *", "minute", "0 to 59"),
    ("h/0 * * * *", "minute", "step 0"),
    ("0 h(0-23)/25 * * *", "hour", "step 25 of H"),
    ("0 0 h(0-5) * *", "day of month", "1 to 31"),
    ("0 0 h(29-31) 2 *", "day of month", "do not always occur together"),
    ("0 0 31 h *", "day of month", "do not always occur together"),
    ("15w * * * *", "minute", "0 to 59"),
    ("0 24 * * *", "hour", "0 to 23"),
    ("0 noon * * *", "hour", "not a number"),
    ("0 l * * *", "hour", "0 to 23"),
    ("0 0 0 * *", "day of month", "1 to 31"),
    ("0 0 32 * *", "day of month", "1 to 31"),
    ("0 0 0w * *", "day of month", "1 to 31"),
    ("0 0 32w * *", "day of month", "1 to 31"),
    ("0 0 w * *", "day of month", "follows one day"),
    ("0 0 15w-20 * *", "day of month", "takes no range"),
    ("0 0 lw/2 * *", "day of month", "takes no range"),
    ("0 0 1 ? *", "month", "write *"),
    ("0 0 l/3 * *", "day of month", "stands alone"),
    ("0 0 1-l * *", "day of month", "stands alone"),
    ("0 0 l-0 * *", "day of month", "L-1 to L-30"),
    ("0 0 l-31 * *", "day of month", "L-1 to L-30"),
    ("0 0 * 0 *", "month", "1 to 12"),
    ("0 0 * 13 *", "month", "1 to 12"),
    ("0 0 * january *", "month", "not a number"),
    ("0 0 * foo *", "month", "jan to dec"),
    ("0 0 * * 8", "day of week", "0 to 7"),
    ("0 0 * * mon#6", "day of week", "#1 to #5"),
    ("0 0 * * mon#0", "day of week", "#1 to #5"),
    ("0 0 * * l", "day of week", "follows its day"),
    ("0 0 * * l8", "day of week", "0 to 7"),
    ("0 0 * * 5l-6", "day of week", "0 to 7"),
    ("0 0 * * 5l/3", "day of week", "0 to 7"),
    ("0 0 * * 5l#1", "day of week", "0 to 7"),
    ("0 0 * * lw", "day of week", "0 to 7"),
    ("0 0 * * * 60", "second", "0 to 59"),
    ("0 0 31 2 *", "day of month", "no such date"),
    ("0 0 30 2 *", "day of month", "no such date"),
    ("0 0 31 4,6 *", "day of month", "no such date"),
    ("0 0 31 2 */2", "day of month", "no such date"),
    ("0 0 31W 2 *", "day of month", "no such date"),
    ("0 0 30W 2 *", "day of month", "no such date"),
    ("0 0 L-29 2 *", "day of month", "no such date"),
    ("0 0 15w * */6", "day of month", "no such date"),
    ("", None, "0 fields"),
    ("* * * *", None, "4 fields"),
    ("* * * * * * 2026", None, "7 fields"),
    ("@reboot", None, "not a time"),
    ("@dayly", None, "@daily"),
    ("CRON_TZ=Europe/Berlin 0 9 * * *", None, "set timezone to 'Europe/Berlin'"),
    ("TZ=UTC @daily", None, "set timezone to 'UTC'"),
    pytest.param("0 " * 200, None, "at most 240", id="long"),
    pytest.param(f"{'h,' * 60}h * * * *", None, "at most 120", id="long, with an H"),
    (None, None, "must be text"),
    (["0"], None, "must be text"),
]


@pytest.mark.parametrize(("expression", "field", "reason"), REFUSED)
def test_an_invalid_expression_is_rejected_with_its_field_and_the_reason(expression, field, reason):
    with pytest.raises(InvalidTriggerError, match=re.escape(reason)) as refusal:
        Cron(expression)

    assert refusal.value.field == field


@pytest.mark.parametrize("year", [1, 1899, 9901, 9999])
def test_a_search_outside_the_years_ends_quickly(year):
    fire_time = Cron("0 9 * * *", timezone="Asia/Seoul").next_after(
        datetime(year, 1, 1, tzinfo=UTC)
    )

    assert (fire_time is None) == (year > 9900)


def test_expressions_are_equal_by_content():
    assert Cron(" 0  9 * * MON-FRI ") == Cron("0 9 * * mon-fri")
    assert hash(Cron("@daily")) == hash(Cron("0 0 * * *"))
    assert Cron("0 9 * * *") != Cron("0 9 * * *", timezone="UTC")
    assert Cron("0 9 1 * fri") != Cron("0 9 1 * fri", day_or=False)


@pytest.mark.parametrize("expression", ["0 9 * * *", "0 9 1 * *", "0 9 * * mon", "0 9 */2 * */3"])
def test_day_or_is_true_when_a_day_field_begins_with_a_star(expression):
    both = Cron(expression, day_or=False)

    assert both == Cron(expression)
    assert both.spec == expression
    assert parse_trigger("cron", f"{expression} day_and") == both
    assert Cron("0 9 1 * mon", day_or=False) != Cron("0 9 1 * mon")
