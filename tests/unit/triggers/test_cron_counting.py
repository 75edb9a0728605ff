"""Counts of cron fire times equal an iteration over them, without its cost."""

import zoneinfo
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from time import thread_time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers import Cron, Trigger, zones
from celery_dynbeat.triggers.cron import wall_times
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


@pytest.mark.parametrize(
    ("expression", "zone", "first", "days", "expected"),
    [
        ("* * * * *", "America/New_York", date(2026, 3, 8), 1, 23 * 60),
        ("* * * * *", "America/New_York", date(2026, 11, 1), 1, 25 * 60),
        ("*/30 1,2 * * *", "America/New_York", date(2026, 3, 8), 1, 2),
        ("*/30 1,2 * * *", "America/New_York", date(2026, 11, 1), 1, 6),
        # The times in the gap fire together with the first time after it.
        ("0-59 2 * * *", "America/New_York", date(2026, 3, 8), 1, 1),
        ("0-59 2,3 * * *", "America/New_York", date(2026, 3, 8), 1, 60),
        ("0-59 1 * * *", "America/New_York", date(2026, 11, 1), 1, 60),
        ("0,30 1 * * * 0,30", "Australia/Lord_Howe", date(2026, 4, 5), 1, 4),
        ("*/10 1 * * *", "Australia/Lord_Howe", date(2026, 4, 5), 1, 9),
        ("*/20 * * * *", "Antarctica/Troll", date(2026, 3, 29), 1, 22 * 3),
        # 30 December was skipped.
        ("0 9,17 * * *", "Pacific/Apia", date(2011, 12, 29), 3, 5),
        ("0 0 * * *", "Pacific/Apia", date(2011, 12, 29), 3, 2),
        ("0 * * * *", "Pacific/Apia", date(2011, 12, 29), 3, 48),
    ],
)
def test_days_with_a_clock_change_are_counted_correctly(expression, zone, first, days, expected):
    trigger = Cron(expression, timezone=zone)
    midnights = [
        datetime.combine(day, time(), tzinfo=zoneinfo.ZoneInfo(zone)).astimezone(UTC)
        for day in (first, first + days * DAY)
    ]

    found = number(trigger, *(midnight - MICROSECOND for midnight in midnights))

    assert found == expected


@pytest.mark.parametrize(
    ("start", "stop", "fixed", "wildcard"),
    [
        # 01:00 to 02:00 occurs twice: from 05:00 and from 06:00 UTC.
        ((5, 20), (6, 30), 39, 70),
        ((5, 59), (6, 0), 0, 1),
        ((6, 0), (6, 1), 0, 1),
        ((6, 20), (6, 59), 0, 39),
        ((6, 20), (7, 5), 6, 45),
    ],
)
def test_only_wildcards_count_in_the_second_pass_of_a_fold(start, stop, fixed, wildcard):
    span = [datetime(2026, 11, 1, *clock, tzinfo=UTC) for clock in (start, stop)]
    zone = "America/New_York"

    assert number(Cron("0-59 0-23 * * *", timezone=zone), *span) == fixed
    assert number(Cron("* * * * *", timezone=zone), *span) == wildcard


@pytest.mark.parametrize(
    ("expression", "zone", "expected"),
    [
        ("* * * * * *", None, 365 * 86_400),
        ("* * * * *", "America/New_York", 365 * 1_440),
        ("30 2 * * *", "America/New_York", 365),
        ("h h * * *", "Asia/Seoul", 365),
        ("0 9 29 2 *", "Asia/Seoul", 0),
    ],
)
def test_a_year_is_counted_by_month_without_a_search(monkeypatch, expression, zone, expected):
    wall_times.wall_times.cache_clear()
    trigger, asked = Cron(expression, timezone=zone), []
    days_in = vars(wall_times)["days_in"]
    monkeypatch.setattr(
        wall_times, "days_in", lambda fields, month: asked.append(month) or days_in(fields, month)
    )
    monkeypatch.setattr(Cron, "next_after", None)

    found = number(trigger, START, START + 365 * DAY)

    assert found == expected
    # Once for each kind of month.
    assert len(asked) <= 20


@pytest.mark.parametrize(("limit", "expected"), [(-1, 0), (0, 0), (1, 1), (59, 59), (61, 60)])
def test_a_count_stops_at_its_limit(limit, expected):
    until = START + timedelta(hours=1)

    assert Cron("* * * * *").count_until(after=START, until=until, limit=limit) == expected


def test_a_reversed_span_and_a_span_outside_the_years_contain_nothing():
    trigger = Cron("* * * * *", timezone="Pacific/Apia")
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)

    assert number(trigger, START, START - DAY) == 0
    assert number(trigger, first, datetime(1899, 1, 1, tzinfo=UTC)) == 0
    assert number(trigger, datetime(9901, 1, 1, tzinfo=UTC), last) == 0


@pytest.mark.parametrize("field", ["after", "until"])
def test_naive_instants_are_rejected(field):
    span = {"after": START, "until": START, field: START.replace(tzinfo=None)}

    with pytest.raises(InvalidTriggerError) as caught:
        Cron("* * * * *").count_until(**span, limit=1)

    assert caught.value.field == field


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


def test_nothing_is_counted_after_the_last_year():
    last = datetime.max.replace(tzinfo=UTC)

    assert Cron("* * * * *").count_until(after=last, until=last, limit=5) == 0
    assert Cron("* * * * *").count_until(after=last, until=START, limit=5) == 0
