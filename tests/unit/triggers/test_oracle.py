"""Cron fire times equal those of a check of every minute of real time.

By default a sample is checked. ``DYNBEAT_ORACLE=all`` adds every clock change of every zone of the
tz database in the years below. That takes about six minutes on two cores with ``-n 2``.
"""

import os
import random
import zoneinfo
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers import Cron
from tests.unit.triggers import expressions, oracle

ZONES = sorted(zoneinfo.available_timezones() - {"localtime", "Factory", "posixrules"})
# Unusual clock changes of each kind: half an hour, a skipped day, winter as the exception, Ramadan,
# midnight, only a week, offsets with seconds.
ODD_ZONES = [
    *("Australia/Lord_Howe", "Pacific/Apia", "Europe/Dublin", "Africa/Casablanca", "Asia/Gaza"),
    *("America/Sao_Paulo", "Africa/Monrovia", "America/Noronha", "Antarctica/Troll", "Asia/Beirut"),
]
MICROSECOND = timedelta(microseconds=1)
EVERYTHING = os.environ.get("DYNBEAT_ORACLE") == "all"
FULL_YEARS = [*range(1970, 2038), 2050, 2086, 2100] if EVERYTHING else []
FULL_EXPRESSIONS = [
    *("30 2 * * *", "0 0 * * *", "30 1 * * *", "15,45 0-3 * * *", "0 2 * * mon-sat", "59 23 * * *"),
    *("0 1-23/2 1-28 * sun", "45 0,1,2,3 l,1-31 * *", "20-40/7 2,3 * * *", "0 4 * * *"),
    *(
        "*/20 * * * *",
        "30 * * * *",
        "*/15 2 * * *",
        "*/10 0-3 * * *",
        "0 */2 * * *",
        "5 */1 */2 * *",
    ),
    *("*/30 1,2,23 * * *", "17 * * * sun,sat", "*/45 0 * * *", "*/25 */3 1-31/2 * *"),
]


def check_against_oracle(
    expression: str, zone: str, start: datetime, stop: datetime, *, starts: list[datetime]
) -> None:
    trigger = Cron(expression, timezone=zone)
    fire_times = oracle.expected(expression, zoneinfo.ZoneInfo(zone), start, stop)

    assert list_fire_times(trigger, start, stop) == fire_times
    for instant in starts:
        wanted = next((fire_time for fire_time in fire_times if fire_time > instant), None)
        found = trigger.next_after(instant)
        assert (found if found is None or found <= stop else None) == wanted, instant


def list_fire_times(trigger: Cron, start: datetime, stop: datetime) -> list[datetime]:
    found, fire_time = [], trigger.next_after(start)
    while fire_time is not None and fire_time <= stop:
        found.append(fire_time)
        fire_time = trigger.next_after(fire_time)
    return found


def probes(near: datetime) -> list[datetime]:
    """Return instants throughout the hours of a clock change, the second pass included."""
    return [near + n * timedelta(minutes=17, microseconds=1) for n in range(30)]


@st.composite
def changes(draw: st.DrawFn) -> tuple[str, datetime]:
    """Draw a zone and an instant, if possible within six hours of a clock change."""
    zone = draw(st.one_of(st.sampled_from(ZONES), st.sampled_from(ODD_ZONES)))
    year = draw(st.integers(1970, 2100))
    near = oracle.changes(zoneinfo.ZoneInfo(zone), year)
    return zone, draw(st.sampled_from(near or [datetime(year, 1, 1, tzinfo=UTC)]))


@settings(max_examples=120)
@given(
    expression=expressions.daily(),
    change=changes(),
    offset=st.integers(-8, 30),
    starts=st.lists(st.integers(0, 36 * 3600 * 10**6), max_size=4),
)
@example("0 9 * * *", ("Pacific/Apia", datetime(2011, 12, 30, 6, tzinfo=UTC)), 30, [])
@example("*/7 0,1 * * *", ("Africa/Monrovia", datetime(1972, 1, 7, tzinfo=UTC)), 10, [])
@example("0,30 1,2 * * *", ("America/New_York", datetime(2026, 11, 1, tzinfo=UTC)), 10, [])
@example("*/30 1 * * *", ("America/New_York", datetime(2026, 11, 1, tzinfo=UTC)), -5, [])
def test_fire_times_equal_those_of_a_check_of_every_minute(expression, change, offset, starts):
    zone, near = change
    start = near - timedelta(hours=offset)
    stop = start + timedelta(hours=36)

    instants = [start + offset * MICROSECOND for offset in starts]
    instants += [instant for instant in probes(near) if start <= instant <= stop]
    check_against_oracle(expression, zone, start, stop, starts=instants)


@settings(max_examples=40)
@given(
    times=expressions.times(),
    seconds=expressions.fields(0, 59),
    change=changes(),
    offset=st.integers(0, 5),
    starts=st.lists(st.integers(0, 3600 * 10**6), max_size=6),
)
def test_fire_times_with_seconds_equal_those_of_a_check_of_every_second(
    times, seconds, change, offset, starts
):
    zone, near = change
    start = near + timedelta(hours=offset)
    stop = start + timedelta(hours=1)

    instants = [start + offset * MICROSECOND for offset in starts]
    check_against_oracle(f"{times} * * * {seconds}", zone, start, stop, starts=instants)


@settings(max_examples=150)
@example(dates="3-1,l * *", day_or=True, start=datetime(2000, 1, 1))  # noqa: DTZ001 - made aware below
@example(dates="1-29,31,l * *", day_or=True, start=datetime(2000, 1, 1))  # noqa: DTZ001
@example(dates="31w,lw 2,4 *", day_or=True, start=datetime(2000, 1, 1))  # noqa: DTZ001
@example(dates="1w,15w,30w * sat,sun", day_or=False, start=datetime(2000, 1, 1))  # noqa: DTZ001
@example(dates="l-27,l-30w * mon#5,l0", day_or=True, start=datetime(2000, 1, 1))  # noqa: DTZ001
@example(dates="* * fri,mon#1,sunl", day_or=True, start=datetime(2000, 1, 1))  # noqa: DTZ001
@example(dates="1-31,lw * 0-6,fril", day_or=False, start=datetime(2000, 1, 1))  # noqa: DTZ001
@given(
    dates=expressions.dates(),
    day_or=st.booleans(),
    start=st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)),  # noqa: DTZ001 - made aware below
)
def test_dates_equal_those_of_a_check_of_every_day(dates, day_or, start):
    expression = f"0 0 {dates}"
    start = start.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=UTC)
    days = [start + timedelta(days=n) for n in range(1, 1200)]
    try:
        trigger = Cron(expression, day_or=day_or)
    except InvalidTriggerError:
        trigger = None
    matches = oracle.matcher(expression.split(), day_or=day_or)

    expected = [day for day in days if matches(day.replace(tzinfo=None))]

    assert ([] if trigger is None else list_fire_times(trigger, start, days[-1])) == expected


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("year", FULL_YEARS)
def test_fire_times_are_correct_at_every_clock_change_of_every_zone(year):
    for zone in ZONES:
        chance = random.Random(f"{zone} {year}")  # noqa: S311 - a sample, not a secret
        for near in oracle.changes(zoneinfo.ZoneInfo(zone), year):
            start, stop = near - timedelta(hours=4), near + timedelta(hours=34)
            for expression in chance.sample(FULL_EXPRESSIONS, 3):
                check_against_oracle(expression, zone, start, stop, starts=probes(near))
