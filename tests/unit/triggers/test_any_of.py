"""AnyOf: the union of the fire times of its triggers."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers import AnyOf, Cron, Every, Once, Trigger

START = datetime(2026, 3, 7, tzinfo=UTC)
HOUR, MICROSECOND = timedelta(hours=1), timedelta(microseconds=1)
NINE, NOON = Cron("0 9 * * *", timezone="Asia/Seoul"), Cron("0 12 * * *", timezone="UTC")
LEAVES = [
    NINE,
    NOON,
    Cron("30 2 * * *", timezone="America/New_York"),
    Cron("0 9 1 * fri", day_or=False),
    Every(5000, anchor=START),
    Every(timedelta(hours=6), anchor=START),
    Every(days=1, timezone="Europe/Berlin", anchor=START),
    Every(weeks=2),
    Once(START + 5 * HOUR),
]


def list_fire_times(trigger: Trigger, until: datetime) -> list[datetime]:
    found, fire_time = [], trigger.next_after(START - MICROSECOND)
    while fire_time is not None and fire_time <= until:
        found.append(fire_time)
        fire_time = trigger.next_after(fire_time)
    return found


@settings(max_examples=60)
@given(st.lists(st.sampled_from(LEAVES[:7] + LEAVES[8:]), min_size=2, max_size=5, unique=True))
def test_any_of_fires_when_any_trigger_fires_and_once_for_equal_instants(parts):
    until = START + timedelta(days=3)

    trigger = AnyOf(*parts)
    found = list_fire_times(trigger, until)

    assert found == sorted(
        {fire_time for part in parts for fire_time in list_fire_times(part, until)}
    )
    assert trigger.count_until(after=START - MICROSECOND, until=until, limit=999) == len(found)
    assert trigger.latest_until(after=START - MICROSECOND, until=until) == found[-1]
    shortest = trigger.shortest_interval(after=START - MICROSECOND)
    assert all(later - earlier >= shortest for earlier, later in pairwise(found))


def test_the_description_contains_each_trigger():
    assert AnyOf(NINE, Every(3600)).describe() == ("At 09:00 every day, Asia/Seoul; or every hour")


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([], "0 different triggers"),
        ([NINE], "1 different triggers"),
        ([NINE, NINE], "1 different triggers"),
        ([Every(n) for n in range(1, 22)], "21 different triggers"),
        ([NINE, "0 9 * * *"], "is not a trigger"),
        ([[NINE, NOON]], "each trigger as an argument"),
    ],
)
def test_invalid_parts_are_rejected(parts, reason):
    with pytest.raises(InvalidTriggerError, match=reason) as refusal:
        AnyOf(*parts)

    assert refusal.value.field == "triggers"


def test_combinations_that_are_too_deep_or_too_long_are_rejected():
    both = AnyOf(NINE, Every(60).excluding(date(2026, 1, 1)))

    with pytest.raises(InvalidTriggerError, match="give all of them to each trigger"):
        both.excluding(date(2026, 1, 1))
    tens = [AnyOf(*map(Every, range(n, n + 10))).excluding(date(2026, 1, 1)) for n in (10, 30)]
    with pytest.raises(InvalidTriggerError, match="AnyOf has 21 different triggers"):
        AnyOf(NINE, *tens)
    minutes = ",".join(map(str, range(0, 59, 2)))
    hours = ",".join(map(str, range(0, 23, 2)))
    long = [Cron(f"{minutes} {hours} {day},{day + 1},{day + 3} * *") for day in range(1, 20)]
    dates = [date(2026, 1, 1) + timedelta(days=n) for n in range(365)]
    with pytest.raises(InvalidTriggerError, match="at most 8000"):
        AnyOf(*(replace(cron, timezone="Asia/Seoul") for cron in long), NOON.excluding(*dates))
