"""Solar near the poles: each search ends, and each event is found once."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from celery_dynbeat.triggers import Solar
from celery_dynbeat.triggers import solar as module

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
YEAR_END = datetime(2026, 12, 31, tzinfo=UTC)
LATITUDES = [-90, -89.9, -88, -66.6, -30, 0, 52.52, 70, 89.6, 89.74, 89.9, 89.9999999999, 90]


@pytest.fixture(autouse=True)
def empty_caches():
    for each in (module._fire_time, module._event_on, module._noon):
        each.cache_clear()


def days_computed():
    """Return the number of computed events. Each costs the same, and is computed once."""
    return module._event_on.cache_info().misses


def fire_times(trigger, start, stop):
    instant, found = start, []
    while (instant := trigger.next_after(instant)) is not None and instant < stop:
        found.append(instant)
    return found


@pytest.mark.timeout(20)
def test_the_search_ends_where_the_search_of_ephem_does_not():
    dawn = Solar("dawn_astronomical", latitude=89.9, longitude=-147.07420713712082)
    asked = datetime(2028, 11, 12, 11, 3, 19, tzinfo=UTC)

    assert asked < dawn.next_after(asked) < asked + 400 * DAY


@pytest.mark.timeout(60)
@pytest.mark.parametrize("latitude", LATITUDES)
@pytest.mark.parametrize("event", module.EVENTS)
def test_no_event_is_found_twice_or_lost(event, latitude):
    trigger = Solar(event, latitude=latitude, longitude=-147.07420713712082)
    # Where the event occurs all year, two months show as much as two years.
    days = 750 if abs(latitude) > 60 else 60

    found = fire_times(trigger, YEAR_END, YEAR_END + days * DAY)

    distances = [later - earlier for earlier, later in pairwise(found)]
    assert min(distances) >= 20 * HOUR
    assert max(distances) < 367 * DAY
    # The last event may lie a year earlier.
    assert days_computed() <= days + 370


@pytest.mark.parametrize("latitude", [90, -90])
def test_at_a_pole_the_sun_rises_once_a_year(latitude):
    sunrise = Solar("sunrise", latitude=latitude, longitude=0)

    found = fire_times(sunrise, YEAR_END, YEAR_END + 1461 * DAY)

    assert [instant.year for instant in found] == [2027, 2028, 2029, 2030]
    assert {instant.month for instant in found} == ({3} if latitude > 0 else {9})


@pytest.mark.parametrize("event", module.EVENTS)
def test_one_search_is_fast(event):
    trigger = Solar(event, latitude=89.9, longitude=100)

    for days in range(0, 400, 7):
        before = days_computed()
        trigger.next_after(YEAR_END + days * DAY)

        assert days_computed() - before <= 370
