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


def test_any_of_ends_when_its_last_trigger_ends():
    trigger = AnyOf(Once(START), Once(START + HOUR))

    assert trigger.next_after(START) == START + HOUR
    assert trigger.next_after(START + HOUR) is None
    assert trigger.latest_until(after=START + HOUR, until=START + 2 * HOUR) is None


def test_order_and_duplicates_of_triggers_do_not_matter():
    assert AnyOf(NINE, NOON) == AnyOf(NOON, NINE, NOON)
    assert hash(AnyOf(NINE, NOON)) == hash(AnyOf(NOON, NINE))
    assert AnyOf(NINE, AnyOf(NOON, LEAVES[4])) == AnyOf(NINE, NOON, LEAVES[4])
    assert AnyOf(NINE, NOON) != AnyOf(NINE, LEAVES[4])


def test_zones_anchors_and_keys_apply_to_every_part():
    trigger = AnyOf(Cron("0 9 * * *"), Every(60), Every(days=1))

    assert trigger.in_zone("Asia/Seoul") == AnyOf(
        NINE, Every(60), Every(days=1, timezone="Asia/Seoul")
    )
    assert trigger.anchored_at(START) == AnyOf(
        Cron("0 9 * * *"), Every(60, anchor=START), Every(days=1, anchor=START)
    )
    assert AnyOf(NINE, NOON).anchored_at(START) == AnyOf(NINE, NOON)
    assert trigger.hashed_by("key") == trigger


def test_parts_that_become_equal_in_a_zone_are_merged():
    assert AnyOf(Cron("0 9 * * *"), NINE).in_zone("Asia/Seoul") == NINE


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
