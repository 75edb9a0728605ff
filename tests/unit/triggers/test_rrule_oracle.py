"""RRule has the wall times of dateutil, and converts them to instants as RFC 5545 requires."""

import itertools
import random
import zoneinfo
from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers import RRule
from tests.unit.triggers import recurrences

SECOND = timedelta(seconds=1)
LONG_AGO = datetime(1990, 1, 1, tzinfo=UTC)
# Each is the day before an unusual clock change.
CHANGES = [
    ("America/New_York", "2026-03-07"),
    ("America/New_York", "2026-10-31"),
    ("Australia/Lord_Howe", "2026-10-03"),
    ("Australia/Lord_Howe", "2026-04-04"),
    ("Pacific/Apia", "2011-12-29"),
    ("Europe/Dublin", "2026-03-28"),
    ("Europe/Dublin", "2026-10-24"),
    ("Africa/Casablanca", "2026-02-14"),
    ("Africa/Casablanca", "2026-03-21"),
    ("America/Sao_Paulo", "2018-11-03"),
    ("Asia/Kolkata", "2026-03-28"),
]
RULES = [
    "FREQ=DAILY;BYHOUR=0,1,2,3;BYMINUTE=0,15,30,45",
    "FREQ=HOURLY;BYMINUTE=0,20,59",
    "FREQ=HOURLY;INTERVAL=5",
    "FREQ=MINUTELY;INTERVAL=7",
    "FREQ=MINUTELY;INTERVAL=25;BYHOUR=1,2,23",
    "FREQ=WEEKLY;BYDAY=SU,FR;BYHOUR=2;BYMINUTE=30",
    "FREQ=DAILY;BYHOUR=2;BYMINUTE=30,31;BYSECOND=0,59",
    "FREQ=MONTHLY;BYDAY=SU,FR;BYHOUR=0,2,3;BYMINUTE=30;BYSETPOS=1,-1,3,7",
]


def chain(trigger, start, stop):
    found, instant = [], trigger.next_after(start)
    while instant is not None and instant <= stop:
        found.append(instant)
        instant = trigger.next_after(instant)
    return found


@pytest.mark.parametrize(("zone", "day"), CHANGES, ids=lambda value: str(value).replace("/", "_"))
@pytest.mark.parametrize("rule", RULES)
def test_wall_times_use_the_offset_before_a_gap_and_fire_once_in_a_fold(zone, day, rule):
    place = zoneinfo.ZoneInfo(zone)
    start = datetime.fromisoformat(day).replace(tzinfo=place).astimezone(UTC)
    stop = start + timedelta(hours=80)
    text = f"DTSTART:{day.replace('-', '')}T000000\nRRULE:{rule}"
    wanted = recurrences.expected(text, place, start, stop)
    trigger = RRule(text, timezone=zone)
    dice = random.Random(f"{zone} {day} {rule}")  # noqa: S311 - the same at each run

    assert chain(trigger, start, stop) == wanted
    for _ in range(60):
        instant = start + timedelta(
            seconds=dice.randrange(72 * 3600), microseconds=dice.randrange(2)
        )
        later = next((fire_time for fire_time in wanted if fire_time > instant), None)
        found = trigger.next_after(instant)
        assert (found if found and found <= stop else None) == later, instant


@pytest.mark.parametrize("seed", range(150))
def test_a_random_rule_has_the_fire_times_of_dateutil(seed):
    dice = random.Random(seed)  # noqa: S311 - the same at each run
    rule = recurrences.random_rule(dice)
    start = datetime(2020, 1, 1) + timedelta(minutes=dice.randrange(4 * 366 * 1440))  # noqa: DTZ001
    text = f"DTSTART:{start:%Y%m%dT%H%M%S}\nRRULE:{rule}"
    try:
        trigger = RRule(text)
    except InvalidTriggerError:
        # dateutil may take minutes to find out the same. Other tests cover rejected rules.
        return

    found = [instant.replace(tzinfo=None) for instant in itertools.islice(fire_times(trigger), 8)]
    wanted = list(itertools.islice(recurrences.walls(text), len(found)))

    assert found == wanted
    for wall in wanted:
        assert trigger.next_after((wall - SECOND).replace(tzinfo=UTC)) == wall.replace(tzinfo=UTC)


def fire_times(trigger):
    """Yield the fire times of a century, so that the oracle can stop there."""
    instant = trigger.next_after(LONG_AGO)
    while instant is not None and instant.year < 2060:
        yield instant
        instant = trigger.next_after(instant)
