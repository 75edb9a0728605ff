"""Counts of cron fire times equal an iteration over them, without its cost."""

import zoneinfo
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from time import thread_time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers import Cron, Trigger, zones
from tests.unit.triggers import expressions, oracle

ZONES = sorted(zoneinfo.available_timezones() - {"localtime", "Factory", "posixrules"})
# Unusual clock changes: half an hour, a skipped day, winter as the exception, Ramadan, two hours,
# midnight, only a week. Offsets with seconds: Dublin until 1916, Amsterdam until 1937, Monrovia
# until 1972.
ODD_ZONES = [
    *("Australia/Lord_Howe", "Pacific/Apia", "Europe/Dublin", "Africa/Casablanca"),
    *("Antarctica/Troll", "America/Sao_Paulo", "Asia/Gaza", "America/Noronha"),
    *("Europe/Amsterdam", "Africa/Monrovia", "Africa/Freetown", "Asia/Manila"),
]
MICROSECOND, SECOND, DAY = timedelta(microseconds=1), timedelta(seconds=1), timedelta(days=1)
START = datetime(2026, 1, 1, tzinfo=UTC)
NO_LIMIT = 10**12
# The tests iterate over at most this number of fire times.
MOST = 400

with_seconds = st.tuples(expressions.daily(), expressions.fields(0, 59)).map(" ".join)
anything = st.one_of(
    *(expressions.daily(), expressions.daily(), with_seconds, expressions.hashed()),
    st.tuples(expressions.times(), expressions.dates()).map(" ".join),
)
few = st.tuples(
    st.sampled_from(["30 2", "0 0", "59 23", "h h(0-3)", "*/40 1"]), expressions.dates()
)
spans = st.one_of(
    *(st.timedeltas(timedelta(0), longest) for longest in (DAY / 144, DAY, 3 * DAY, 200 * DAY)),
)


@st.composite
def places(draw: st.DrawFn) -> tuple[str, datetime]:
    """Draw a zone and an instant, mostly within a day of a clock change."""
    zone = draw(st.one_of(st.sampled_from(ZONES), st.sampled_from(ODD_ZONES)))
    year = draw(st.one_of(st.integers(1901, 2100), st.integers(1970, 2040)))
    near = oracle.changes(zoneinfo.ZoneInfo(zone), year) or [datetime(year, 1, 1, tzinfo=UTC)]
    return zone, draw(st.sampled_from(near)) + draw(st.timedeltas(-DAY, DAY))


@st.composite
def ends(draw: st.DrawFn, trigger: Trigger, instant: datetime) -> datetime:
    """Draw an end of a span: ``instant``, a fire time after it, or a microsecond from that."""
    shift = draw(st.sampled_from([None, timedelta(0), -MICROSECOND, MICROSECOND, -SECOND]))
    fire_time = None if shift is None else trigger.next_after(instant)
    return instant if fire_time is None or fire_time - instant > DAY else fire_time + shift


def made(expression: str, *, zone: str, day_or: bool) -> Cron:
    try:
        return Cron(expression, timezone=zone, day_or=day_or)
    except InvalidTriggerError:
        assume(condition=False)
        raise


def list_fire_times(trigger: Trigger, after: datetime, until: datetime) -> list[datetime]:
    found, fire_time = [], trigger.next_after(after)
    while fire_time is not None and fire_time <= until and len(found) < MOST:
        found.append(fire_time)
        fire_time = trigger.next_after(fire_time)
    return found


def number(trigger: Trigger, after: datetime, until: datetime) -> int:
    return trigger.count_until(after=after, until=until, limit=NO_LIMIT)


@settings(max_examples=250, deadline=None)
@given(
    data=st.data(),
    expression=st.one_of(anything, few.map(" ".join)),
    place=places(),
    span=spans,
    day_or=st.booleans(),
)
def test_the_count_and_the_newest_fire_time_equal_those_of_an_iteration(
    data, expression, place, span, day_or
):
    zone, start = place
    trigger = made(expression, zone=zone, day_or=day_or)
    after = data.draw(ends(trigger, start))
    until = data.draw(ends(trigger, start + span))
    fire_times = list_fire_times(trigger, after, until)
    if len(fire_times) == MOST:
        until = fire_times[-1]

    assert number(trigger, after, until) == len(fire_times)
    assert number(trigger, after, until) == Trigger.count_until(
        trigger, after=after, until=until, limit=MOST
    )
    assert trigger.latest_until(after=after, until=until) == (fire_times or [None])[-1]


@settings(max_examples=60, deadline=None)
@given(
    expression=anything,
    place=places(),
    parts=st.lists(st.timedeltas(timedelta(0), 150 * DAY), min_size=2, max_size=4),
    day_or=st.booleans(),
)
def test_the_counts_of_parts_of_a_span_add_up_to_the_count_of_the_span(
    expression, place, parts, day_or
):
    zone, start = place
    trigger = made(expression, zone=zone, day_or=day_or)
    cuts = [start]
    for part in parts:
        cuts.append(cuts[-1] + part)

    counted = [number(trigger, *pair) for pair in pairwise(cuts)]

    assert sum(counted) == number(trigger, cuts[0], cuts[-1])


@pytest.mark.parametrize(("limit", "expected"), [(-1, 0), (0, 0), (1, 1), (59, 59), (61, 60)])
def test_a_count_stops_at_its_limit(limit, expected):
    until = START + timedelta(hours=1)

    assert Cron("* * * * *").count_until(after=START, until=until, limit=limit) == expected


@pytest.mark.parametrize(
    ("zone", "year"), [("Africa/Freetown", 1939), ("America/Noronha", 2000), ("Asia/Gaza", 2040)]
)
def test_two_clock_changes_are_more_than_a_stride_apart(zone, year):
    changes = oracle.changes(zoneinfo.ZoneInfo(zone), year)

    assert min(later - earlier for earlier, later in pairwise(changes)) > zones._STRIDE


@pytest.mark.no_cover
def test_the_cost_of_a_count_is_bounded_by_its_limit():
    trigger, started = Cron("0 9 * * *"), thread_time()
    ages = {"after": datetime(1900, 1, 1, tzinfo=UTC), "until": datetime(9900, 1, 1, tzinfo=UTC)}

    assert trigger.count_until(**ages, limit=1) == 1
    assert trigger.count_until(**ages, limit=0) == 0
    assert trigger.count_until(**ages, limit=1000) == 1000
    seoul = Cron("0 9 * * *", timezone="Asia/Seoul")
    assert seoul.count_until(**ages, limit=1000) == 1000
    assert thread_time() - started < 0.2
