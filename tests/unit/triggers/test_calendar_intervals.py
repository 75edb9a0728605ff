"""Every with calendar time: one wall time every n days, weeks, months or years."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from dateutil import tz
from dateutil.relativedelta import relativedelta
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers import Every

NINE = datetime(2026, 1, 31, 9, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
ZONES = [
    *("UTC", "Asia/Seoul", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"),
    *("America/St_Johns", "America/Sao_Paulo", "Africa/Casablanca", "Pacific/Apia", "Asia/Gaza"),
    *("Pacific/Kwajalein", "Pacific/Kiritimati", "Africa/Monrovia", "America/Santiago"),
]
MOST = {"days": 800, "weeks": 120, "months": 60, "years": 9}
units = st.sampled_from(list(MOST)).flatmap(
    lambda unit: st.tuples(st.just(unit), st.integers(1, MOST[unit] // 8))
)
# Quarters of an hour, so that many lie in gaps and folds, and at midnight.
anchors = st.builds(
    lambda day, quarter: day + timedelta(minutes=15) * quarter,
    st.datetimes(datetime(1971, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC)).map(  # noqa: DTZ001 - made aware
        lambda instant: instant.replace(hour=0, minute=0, second=0, microsecond=0)
    ),
    st.integers(0, 95),
)


def list_fire_times(
    unit: str, count: int, anchor: datetime, zone: ZoneInfo, steps: int
) -> list[datetime]:
    """Return the fire times by the arithmetic of dateutil, independent of the package."""
    wall = anchor.astimezone(zone).replace(tzinfo=None)
    walls = [wall + relativedelta(**{unit: count * k}) for k in range(1, steps)]
    found = [anchor]
    for each in walls:
        local = each.replace(tzinfo=zone)
        shown = tz.datetime_exists(local)
        instant = local.astimezone(UTC) if shown else end_of_gap(local)
        if instant != found[-1]:
            found.append(instant)
    return found


def end_of_gap(local: datetime) -> datetime:
    """Return the first whole second at which the clock shows a later time."""
    wall, zone = local.replace(tzinfo=None), local.tzinfo
    low = local.replace(fold=0).astimezone(UTC) - timedelta(hours=30)
    high = low + timedelta(hours=60)
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) // 2
        if middle.astimezone(zone).replace(tzinfo=None) < wall:
            low = middle
        else:
            high = middle
    return high.replace(microsecond=0)


@settings(max_examples=250)
@given(unit=units, anchor=anchors, zone=st.sampled_from(ZONES), start=st.integers(0, 7))
def test_fire_times_equal_those_of_dateutil_arithmetic(unit, anchor, zone, start):
    trigger = Every(**dict([unit]), anchor=anchor, timezone=zone)
    expected = list_fire_times(unit[0], unit[1], anchor, ZoneInfo(zone), 9)

    fire_time, found = anchor - MICROSECOND, []
    for _ in expected:
        fire_time = trigger.next_after(fire_time)
        found.append(fire_time)

    assert found == expected
    assert found == sorted(set(found))
    later = expected[min(start, len(expected) - 1)]
    assert trigger.next_after(later - MICROSECOND) == later
    assert trigger.latest_until(after=anchor - MICROSECOND, until=later) == later


@settings(max_examples=150)
@given(
    anchor=st.sampled_from(["2011-12-20", "1993-08-10", "1994-12-20", "2025-12-24"]),
    minutes=st.integers(0, 95).map(lambda quarter: 15 * quarter),
    zone=st.sampled_from(ZONES),
    low=st.integers(0, 29 * 24),
    span=st.integers(0, 20 * 24),
    days=st.integers(1, 2),
)
def test_a_count_over_a_skipped_day_equals_the_number_of_fire_times(
    anchor, minutes, zone, low, span, days
):
    start = datetime.fromisoformat(anchor).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    start += timedelta(minutes=minutes)
    after = start + timedelta(hours=low - 24)
    until = after + timedelta(hours=span)
    trigger = Every(days=days, anchor=start, timezone=zone)

    inside = [
        each for each in list_fire_times("days", days, start, ZoneInfo(zone), 60) if after < each
    ]
    inside = [each for each in inside if each <= until]

    assert trigger.count_until(after=after, until=until, limit=99) == len(inside)
    assert trigger.count_until(after=after, until=until, limit=2) == min(len(inside), 2)
    assert trigger.latest_until(after=after, until=until) == (inside or [None])[-1]


def test_a_calendar_interval_rejects_an_anchor_outside_its_years():
    for year in (1899, 9901):
        with pytest.raises(InvalidTriggerError, match="covers the years 1900 to 9900") as refusal:
            Every(days=1).anchored_at(NINE.replace(year=year))
        assert refusal.value.field == "anchor"


def test_there_is_no_fire_time_after_the_year_9900():
    late, end = datetime(9899, 12, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)

    for trigger in (Every(years=1), Every(years=100, anchor=NINE), Every(days=36525)):
        assert trigger.next_after(end) is None
        assert trigger.latest_until(after=end, until=end) is None
    assert Every(years=1, anchor=late).next_after(late) is None
    assert Every(days=1, timezone="America/New_York").next_after(datetime.min.replace(tzinfo=UTC))


@pytest.mark.parametrize(
    ("given", "field", "reason"),
    [
        ({}, "interval", "timedelta or a number"),
        ({"interval": 60, "days": 1}, "interval", "an interval and days"),
        ({"days": 1, "months": 1}, "interval", "one unit"),
        ({"days": 0}, "interval", "from 1 to 36525"),
        ({"months": 1.5}, "interval", "whole number"),
        ({"weeks": True}, "interval", "whole number"),
        ({"years": "1"}, "interval", "whole number"),
        ({"years": 101}, "interval", "100 years"),
        ({"weeks": 10**400}, "interval", "100 years"),
        ({"days": 1, "timezone": "Mars"}, "timezone", "unknown time zone"),
        ({"days": 1, "timezone": 9}, "timezone", "must be text"),
        ({"days": 1, "anchor": NINE.replace(tzinfo=None)}, "anchor", "has no zone"),
        ({"days": 1, "anchor": NINE.replace(year=1800)}, "anchor", "1900 to 9900"),
    ],
)
def test_an_invalid_calendar_interval_is_rejected_with_the_reason(given, field, reason):
    with pytest.raises(InvalidTriggerError, match=reason) as refusal:
        Every(**given)

    assert refusal.value.field == field


@pytest.mark.parametrize(
    ("trigger", "words"),
    [
        (Every(months=1, timezone="Europe/Berlin"), "every month, Europe/Berlin"),
        (Every(days=1), "every day, UTC"),
        (
            Every(weeks=2, timezone="Asia/Seoul", anchor=NINE - timedelta(hours=9)),
            "every 2 weeks from 2026-01-31 09:00 (Asia/Seoul)",
        ),
    ],
)
def test_a_calendar_interval_is_described_in_words(trigger, words):
    assert trigger.phrase() == words
