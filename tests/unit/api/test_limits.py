"""The lower bound of the interval of a cron expression, which dynbeat_min_interval relies on."""

from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from hypothesis import example, given
from hypothesis import strategies as st

from celery_dynbeat import Cron
from celery_dynbeat.api.limits import minimum_gap

FROM, UNTIL = datetime(2026, 1, 1, tzinfo=UTC), datetime(2041, 1, 1, tzinfo=UTC)
ZONES = ["UTC", "Europe/Berlin", "America/Havana", "Australia/Lord_Howe", "Antarctica/Troll"]


def values(high):
    numbers = st.lists(st.integers(0, high), min_size=1, max_size=3)
    return numbers.map(lambda chosen: ",".join(map(str, chosen)))


@st.composite
def crons(draw):
    minute = draw(values(59) | st.sampled_from(["*", "*/20", "*/59", "h"]))
    hour = draw(values(23) | st.sampled_from(["*", "*/2", "*/24", "0-3", "h"]))
    second = draw(st.just("") | values(59))
    zone = draw(st.sampled_from(ZONES))
    cron = Cron(f"{minute} {hour} * * * {second}", timezone=zone)
    return cron, cron.hashed_by(draw(st.text(max_size=3)))


# Havana repeats the hour from midnight on. Troll has the largest forward change.
@example(
    (Cron("30 */24 * * *", timezone="America/Havana"),) * 2, datetime(2026, 10, 20, tzinfo=UTC)
)
@example(
    (Cron("59 0,3 * * *", timezone="Antarctica/Troll"),) * 2, datetime(2026, 3, 20, tzinfo=UTC)
)
@given(crons(), st.datetimes(datetime(2026, 1, 1), datetime(2037, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
def test_a_cron_never_fires_closer_than_its_minimum_gap(pair, after):
    cron, picked = pair

    assert minimum_gap(cron) <= picked.shortest_interval(after=after)


@cache
def _changes():
    step, found = timedelta(days=5), []
    for name in sorted(available_timezones() - {"localtime", "posixrules", "Factory"}):
        zone, instant, offset = ZoneInfo(name), FROM, FROM.astimezone(ZoneInfo(name)).utcoffset()
        while instant < UNTIL:
            instant += step
            later = instant.astimezone(zone).utcoffset()
            if later != offset:
                found.append((name, offset, later, _when(zone, instant - step, instant)))
            offset = later
    return found


def _when(zone, start, stop):
    old = start.astimezone(zone).utcoffset()
    while stop - start > timedelta(seconds=1):
        middle = (start + (stop - start) / 2).replace(microsecond=0)
        start, stop = (
            (middle, stop) if middle.astimezone(zone).utcoffset() == old else (start, middle)
        )
    return stop


def test_all_clocks_change_by_whole_minutes_and_forward_by_at_most_two_hours():
    for name, before, after, at in _changes():
        assert before % timedelta(minutes=1) == after % timedelta(minutes=1) == timedelta(0), name
        assert (at - FROM) % timedelta(minutes=1) == timedelta(0), name
        assert after - before <= timedelta(hours=2), name
