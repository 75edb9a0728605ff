"""The newest fire time of a span and the count, without an iteration over a year."""

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_dynbeat.triggers import AnyOf, Cron, Every, Once, Trigger

START = datetime(2026, 3, 7, tzinfo=UTC)
DAY, YEAR = timedelta(days=1), timedelta(days=365)
TRIGGERS = [
    Cron("*/20 * * * *", timezone="America/New_York"),
    Cron("30 2 * * *", timezone="America/New_York"),
    Cron("0 9 1 * *"),
    Cron("0-2 0 1,2 * *"),
    Every(5000, anchor=START + DAY / 3),
    Every(7000),
    Every(days=1, anchor=START, timezone="America/New_York"),
    AnyOf(Every(5000, anchor=START), Cron("0 */2 * * *"), Once(START + 2 * DAY)),
    Cron("0 */3 * * *", timezone="America/New_York").excluding(date(2026, 3, 8), Cron("0 0 * * 3")),
    Once(START + 2 * DAY),
]
spans = st.timedeltas(timedelta(0), 5 * DAY)


def list_fire_times(trigger: Trigger, after: datetime, until: datetime) -> list[datetime]:
    found, fire_time = [], trigger.next_after(after)
    while fire_time is not None and fire_time <= until:
        found.append(fire_time)
        fire_time = trigger.next_after(fire_time)
    return found


@settings(max_examples=150)
@given(trigger=st.sampled_from(TRIGGERS), offset=spans, span=spans, limit=st.integers(0, 40))
def test_the_newest_fire_time_and_the_count_equal_those_of_an_iteration(
    trigger, offset, span, limit
):
    after = START + offset
    until = after + span
    fire_times = list_fire_times(trigger, after, until)

    assert trigger.latest_until(after=after, until=until) == (fire_times or [None])[-1]
    assert trigger.count_until(after=after, until=until, limit=limit) == min(len(fire_times), limit)


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_span_includes_its_end_but_not_its_start(trigger):
    after = trigger.next_after(START) if not isinstance(trigger, Once) else START
    until = trigger.next_after(after)

    assert trigger.latest_until(after=after, until=until) == until
    assert trigger.latest_until(after=after, until=until - timedelta(microseconds=1)) is None
    assert trigger.latest_until(after=until, until=after) is None


@pytest.mark.parametrize("expression", ["* * * * * *", "* * * * *", "0 9 * * *", "0-5 0 1 1 *"])
def test_a_year_is_searched_in_few_steps(expression):
    trigger = Counting(Cron(expression))

    latest = trigger.latest_until(after=START, until=START + YEAR)

    assert trigger.calls <= 80
    assert list_fire_times(trigger, latest - timedelta(microseconds=1), START + YEAR) == [latest]


class Counting(Trigger):
    """A trigger with only ``next_after``, whose calls are counted."""

    kind = "counting"
    spec = ""

    def __init__(self, inner: Trigger) -> None:
        self.inner, self.calls = inner, 0

    def next_after(self, instant: datetime) -> datetime | None:
        self.calls += 1
        return self.inner.next_after(instant)

    def phrase(self) -> str:
        return "counted"
