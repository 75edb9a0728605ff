"""Cron has the fire times of croniter for expressions that both accept and read alike.

They differ on purpose, for example in ranges of one value and in ``31W`` in a short month; see
docs/reference/triggers.md and test_published_cases.py.
"""

from datetime import UTC, datetime

import pytest
from croniter import croniter
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_dynbeat.triggers import Cron
from tests.unit.triggers import expressions

START = datetime(2026, 1, 1, tzinfo=UTC)
COMMON = [
    *("* * * * *", "*/5 * * * *", "0 * * * *", "0 9 * * mon-fri", "0 0 1 * *", "30 4 1,15 * 5"),
    *("0 0 29 2 *", "0 12 l * *", "15 8 * * mon#2", "0 18 * * l5", "0 22-2 * * sat-sun"),
]
DAYS = [
    *("* * *", "1-28 * *", "* * mon-fri", "*/7 * *", "1,15 * fri", "l * *", "13 * fri", "* 2,3 *"),
    *("* * sun#1", "* 6-8 0", "31 * *", "* */3 6,7", "15w * *", "* * l2"),
]


def times(low: int, high: int) -> st.SearchStrategy[str]:
    return expressions.fields(low, high).filter(lambda text: not has_single_range(text))


def has_single_range(text: str) -> bool:
    """Whether a range has one value. croniter reads it as the whole field."""
    ranges = [item.partition("/")[0].split("-") for item in text.split(",")]
    return any(ends[1:] and ends[0] == ends[1] for ends in ranges)


def check(expression: str, start: datetime, *, count: int) -> None:
    trigger, other = Cron(expression), croniter(expression, start)
    fire_time = start
    for _ in range(count):
        fire_time = trigger.next_after(fire_time)
        assert fire_time == other.get_next(datetime), expression


@pytest.mark.parametrize("expression", COMMON)
def test_a_common_expression_has_the_fire_times_of_croniter(expression):
    check(expression, START, count=100)


@settings(max_examples=200, deadline=None)
@given(
    minute=times(0, 59),
    hour=times(0, 23),
    days=st.sampled_from(DAYS),
    start=st.datetimes(datetime(1990, 1, 1), datetime(2080, 1, 1)),  # noqa: DTZ001 - made aware below
)
def test_any_times_of_day_have_the_fire_times_of_croniter(minute, hour, days, start):
    start = start.replace(second=0, microsecond=0, tzinfo=UTC)
    check(f"{minute} {hour} {days}", start, count=10)
