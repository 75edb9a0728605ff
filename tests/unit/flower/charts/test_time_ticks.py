"""Ticks of a time axis are round wall times, also around clock changes."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat.flower.charts.scales import (
    clock_changes,
    day_label,
    time_step,
    time_ticks,
)

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
ZONES = [
    ZoneInfo(name)
    for name in (
        *("UTC", "America/New_York", "Europe/Berlin", "Asia/Seoul", "Asia/Kathmandu"),
        # The clock changes by 30 minutes; at midnight; and a day was skipped.
        *("Australia/Lord_Howe", "America/Havana", "Africa/Cairo", "Pacific/Apia"),
    )
]


def local(zone, *fields, **options):
    return datetime(*fields, tzinfo=ZoneInfo(zone), **options)


def labels(start, end):
    return [tick.label for tick in time_ticks(start, end)]


@st.composite
def windows(draw):
    zone = draw(st.sampled_from(ZONES))
    start = draw(st.datetimes(datetime(2010, 1, 1), datetime(2030, 1, 1)))  # noqa: DTZ001 - made aware below
    length = draw(st.floats(60, 35 * 86_400))
    start = start.replace(tzinfo=UTC).astimezone(zone)
    return start, (start.astimezone(UTC) + timedelta(seconds=length)).astimezone(zone)


@given(window=windows())
def test_ticks_are_in_order_within_the_axis_and_few(window):
    start, end = window
    instants = [tick.at.timestamp() for tick in time_ticks(start, end)]

    assert instants == sorted(set(instants))
    assert all(start.timestamp() <= at <= end.timestamp() for at in instants)
    # A clock change that repeats times can add some.
    assert len(instants) <= 9 + 4


@given(window=windows())
def test_each_instant_with_a_round_wall_time_has_a_tick(window):
    start, end = window
    step = time_step(start, end)
    if step >= DAY or step < timedelta(minutes=1):
        return
    # By brute force: each minute of the window whose wall time is a multiple of the step.
    first = start.astimezone(UTC).replace(second=0, microsecond=0)
    minutes = int((end.timestamp() - first.timestamp()) // 60)
    instants = (first + timedelta(minutes=n) for n in range(minutes + 1))
    expected = [
        at
        for at in instants
        if at >= start.astimezone(UTC)
        for wall in [at.astimezone(start.tzinfo)]
        if not timedelta(hours=wall.hour, minutes=wall.minute) % step
    ]
    assert [tick.at.astimezone(UTC) for tick in time_ticks(start, end)] == expected


@given(window=windows())
def test_days_begin_at_the_first_instant_of_their_date(window):
    start, end = window
    if time_step(start, end) < DAY:
        return
    for tick in time_ticks(start, end):
        before = (tick.at.astimezone(UTC) - timedelta(seconds=1)).astimezone(start.tzinfo)
        assert before.date() < tick.at.date()


def test_a_day_without_midnight_begins_after_the_gap():
    # Cairo's clock goes from 23:59:59 on 23 April 2026 to 01:00 on the 24th.
    start, end = local("Africa/Cairo", 2026, 4, 22), local("Africa/Cairo", 2026, 4, 27)

    assert [f"{tick.at:%d %H:%M}" for tick in time_ticks(start, end)][1:4] == [
        "23 00:00",
        "24 01:00",
        "25 00:00",
    ]


def test_a_midnight_begins_a_day():
    start = local("Asia/Seoul", 2026, 11, 22, 20)
    ticks = time_ticks(start, start + 8 * HOUR)

    assert [tick.label for tick in ticks if tick.is_major] == ["00:00"]
    assert day_label(next(tick.at for tick in ticks if tick.is_major)) == "Mon 23 Nov"


@pytest.mark.parametrize(
    ("length", "second"),
    [
        (timedelta(minutes=1), "09:00:10"),
        (timedelta(minutes=15), "09:02"),
        (8 * HOUR, "10:00"),
        (timedelta(days=1), "12:00"),
        (timedelta(days=28), "30 Nov"),
        (timedelta(days=300), "1 Mar 2027"),
        (timedelta(days=200), "28 Dec"),
    ],
)
def test_the_step_fits_the_length_of_the_axis(length, second):
    start = datetime(2026, 11, 22, 9, tzinfo=UTC)

    assert labels(start, start + length)[1] == second


def test_clock_changes_have_their_instant_and_shift():
    [change] = clock_changes(
        local("America/New_York", 2026, 3, 1), local("America/New_York", 2026, 4, 1)
    )

    assert change.at == datetime(2026, 3, 8, 7, tzinfo=UTC)
    assert (f"{change.at:%H:%M}", change.label) == ("03:00", "+1 h")
