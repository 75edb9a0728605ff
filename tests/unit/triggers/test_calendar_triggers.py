"""Triggers that name shared calendars: excluded days, and business days.

The oracle looks at each fire time of the inner trigger, and moves or drops it on its own.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_dynbeat.common.errors import InvalidTriggerError, UnresolvedCalendarError
from celery_dynbeat.triggers import (
    AnyOf,
    CalendarDays,
    Cron,
    Every,
    OnBusinessDay,
    Once,
    Trigger,
    parse_trigger,
)
from celery_dynbeat.triggers.base import SearchBudget
from celery_dynbeat.triggers.zones import skipped_days, wall_at


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)


HOUR, DAY, MICROSECOND = timedelta(hours=1), timedelta(days=1), timedelta(microseconds=1)
NAME = "holidays-de"
# With clock changes: at midnight in Sao Paulo, by a whole day in Apia.
STARTS = {
    "UTC": at(2026, 3, 25),
    "Europe/Berlin": at(2026, 3, 25),
    "America/New_York": at(2026, 10, 28),
    "America/Sao_Paulo": at(2018, 11, 1),
    "America/St_Johns": at(2010, 11, 4),
    "Pacific/Apia": at(2011, 12, 26),
}
SPAN = 14 * DAY


def fire_times(trigger: Trigger, start: datetime, until: datetime) -> Iterator[datetime]:
    fire_time = trigger.next_after(start)
    while fire_time is not None and fire_time <= until:
        yield fire_time
        fire_time = trigger.next_after(fire_time)


def bases(start: datetime, zone: str) -> list[Trigger]:
    return [
        Cron("0 */4 * * *", timezone=zone),
        Cron("30 0,1,2,23 * * *", timezone=zone),
        Cron("15 9 * * mon,sat", timezone=zone),
        Every(7 * HOUR, anchor=start),
        Every(days=2, anchor=start + HOUR, timezone=zone),
        AnyOf(Cron("0 6 * * *", timezone=zone), Once(start + 30 * HOUR)),
        Cron("0 0 * * *", timezone="Pacific/Apia"),
    ]


def date_of(zone: ZoneInfo, instant: datetime) -> date:
    """Return the last day whose midnight the clock of the zone has shown."""
    shown = wall_at(zone, instant).date()
    tomorrow = datetime.combine(shown + DAY, datetime.min.time())
    return shown + DAY if instant >= first_reading(zone, tomorrow) else shown


def first_reading(zone: ZoneInfo, wall: datetime) -> datetime:
    """Return the first instant at which the clock shows the wall time or a later one."""
    instant = wall.replace(tzinfo=UTC) - 15 * HOUR
    for step in (HOUR, timedelta(minutes=1), timedelta(seconds=1)):
        while wall_at(zone, instant + step) < wall:
            instant += step
    after = instant + timedelta(seconds=1)
    # Fractions exist only outside a gap.
    return after + (wall - wall_at(zone, after) if wall_at(zone, after) <= wall else DAY * 0)


class Oracle:
    """Fire times on days that a calendar does not take, or moved to its business days."""

    def __init__(self, zone: str, days: CalendarDays, start: datetime) -> None:
        self.zone, self.days = ZoneInfo(zone), days
        self.start, self.until = start - 45 * DAY, start + 45 * DAY + SPAN

    def takes(self, day: date) -> bool:
        return day in self.days.dates

    def is_business_day(self, day: date) -> bool:
        is_skipped = day in skipped_days(self.zone)
        return not (is_skipped or day.weekday() in self.days.weekend or self.takes(day))

    def excluding(self, trigger: Trigger) -> list[datetime]:
        found = fire_times(trigger, self.start, self.until)
        return [instant for instant in found if not self.takes(date_of(self.zone, instant))]

    def moved(self, trigger: Trigger, direction: str) -> list[datetime]:
        step = DAY if direction == "next" else -DAY
        moved = set()
        for instant in fire_times(trigger, self.start, self.until):
            day = date_of(self.zone, instant)
            targets = [day + n * step for n in range(32) if self.is_business_day(day + n * step)]
            if targets and targets[0] == day:
                moved.add(instant)
            elif targets:
                wall = datetime.combine(targets[0], wall_at(self.zone, instant).time())
                moved.add(first_reading(self.zone, wall))
        return sorted(moved)


@st.composite
def cases(draw):
    zone = draw(st.sampled_from([*STARTS]))
    start = STARTS[zone]
    numbers = draw(st.sets(st.integers(-6, 20), max_size=8))
    first_day = wall_at(ZoneInfo(zone), start).date()
    weekend = draw(st.sampled_from([frozenset(), frozenset({5, 6}), frozenset({4})]))
    dates = frozenset(first_day + n * DAY for n in numbers)
    days = CalendarDays(NAME, dates, weekend)
    trigger = draw(st.sampled_from(bases(start, zone)))
    return zone, start, days, trigger


def check(trigger: Trigger, expected: list[datetime], start: datetime) -> None:
    """Compare each kind of search with the expected fire times."""
    until = start + SPAN
    inside = [instant for instant in expected if start < instant <= until]
    assert list(fire_times(trigger, start, until)) == inside
    cursor, found = trigger.cursor(SearchBudget()), []
    instant = cursor.next_after(start)
    while instant is not None and instant <= until:
        found.append(instant)
        instant = cursor.next_after(instant)
    assert found == inside
    for near in inside[::3]:
        for probe in (near - MICROSECOND, near, near + 5 * HOUR):
            later = [instant for instant in expected if instant > probe]
            assert trigger.next_after(probe) == later[0]
            newest = [instant for instant in expected if start < instant <= probe]
            assert trigger.latest_until(after=start, until=probe) == (newest or [None])[-1]
    assert trigger.count_until(after=start, until=until, limit=1000) == len(inside)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_days_of_a_calendar_are_excluded_as_the_oracle_says(case):
    zone, start, days, trigger = case
    rule = trigger.excluding(calendar=NAME, timezone=zone).resolved({NAME: days})
    expected = Oracle(zone, days, start).excluding(trigger)
    check(rule, expected, start)


@settings(max_examples=120, deadline=None)
@given(cases(), st.sampled_from(["next", "previous"]))
def test_fire_times_move_to_business_days_as_the_oracle_says(case, direction):
    zone, start, days, trigger = case
    rule = trigger.on_business_day(direction, calendar=NAME, timezone=zone).resolved({NAME: days})
    check(rule, Oracle(zone, days, start).moved(trigger, direction), start)


@settings(max_examples=60, deadline=None)
@given(cases(), st.sampled_from(["next", "previous"]), st.sets(st.integers(0, 12), max_size=4))
def test_exclusions_apply_to_the_moved_fire_times(case, direction, numbers):
    zone, start, days, trigger = case
    freeze = frozenset(wall_at(ZoneInfo(zone), start).date() + n * DAY for n in numbers)
    rule = trigger.on_business_day(direction, calendar=NAME, timezone=zone)
    rule = rule.excluding(calendar="freeze", timezone=zone)
    rule = rule.resolved({NAME: days, "freeze": CalendarDays("freeze", freeze)})
    moved = Oracle(zone, days, start).moved(trigger, direction)
    expected = [each for each in moved if date_of(ZoneInfo(zone), each) not in freeze]
    check(rule, expected, start)


DAILY = Cron("0 9 * * *", timezone="Europe/Berlin")
CHRISTMAS = CalendarDays(NAME, frozenset({date(2026, 12, 25), date(2026, 12, 26)}))


def test_an_unresolved_trigger_is_a_value_without_fire_times():
    rule = DAILY.excluding(calendar=NAME)
    assert rule == DAILY.excluding(calendar=[NAME])
    assert rule.calendar_names == (NAME,)
    assert parse_trigger(rule.kind, rule.spec) == rule
    assert Trigger.from_json(rule.to_json()) == rule
    assert rule.describe() == (
        "At 09:00 every day, Europe/Berlin, except on days of the calendar holidays-de"
    )
    searches = [
        lambda: rule.next_after(at(2026, 1, 1)),
        lambda: rule.latest_until(after=at(2026, 1, 1), until=at(2026, 1, 5)),
        lambda: rule.count_until(after=at(2026, 1, 1), until=at(2026, 1, 5), limit=9),
        lambda: rule.cursor(SearchBudget()),
        lambda: DAILY.on_business_day("next", calendar=NAME).next_after(at(2026, 1, 1)),
    ]
    for search in searches:
        with pytest.raises(UnresolvedCalendarError, match="holidays-de"):
            search()


def test_a_missing_calendar_is_an_error_of_the_trigger():
    with pytest.raises(InvalidTriggerError, match="'holidays-de': there is no calendar") as raised:
        DAILY.excluding(calendar=NAME).resolved({})
    assert raised.value.field == "calendar"


def test_a_trigger_names_at_most_five_calendars():
    names = [f"c{number}" for number in range(5)]
    assert DAILY.excluding(calendar=names).calendar_names == tuple(names)
    with pytest.raises(InvalidTriggerError, match="names 6 calendars; at most 5"):
        DAILY.excluding(calendar=[*names, "c5"])
    others = AnyOf(Cron("0 1 * * *").excluding(calendar=names), Cron("0 2 * * *"))
    assert others.calendar_names == tuple(names)
    with pytest.raises(InvalidTriggerError, match="at most 5"):
        AnyOf(others, Cron("0 3 * * *").excluding(calendar="c9"))


@pytest.mark.parametrize("name", ["", "Holidays", "a b", "a/b", "ä", "a" * 101, None, 5])
def test_names_of_calendars_are_bounded(name):
    with pytest.raises(InvalidTriggerError, match="1 to 100 of the characters"):
        DAILY.on_business_day("next", calendar=name)
    with pytest.raises(InvalidTriggerError, match="1 to 100 of the characters"):
        DAILY.excluding(calendar=[name])


@pytest.mark.parametrize(
    "spec",
    [
        '{"trigger":{"kind":"cron","spec":"0 9 * * *"},"calendars":"holidays-de"}',
        '{"trigger":{"kind":"cron","spec":"0 9 * * *"},"calendars":[[1]]}',
        '{"trigger":{"kind":"cron","spec":"0 9 * * *"},"calendars":[{"a":1}]}',
        '{"trigger":{"kind":"cron","spec":"0 9 * * *"},"calendars":[]}',
    ],
)
def test_invalid_calendars_in_a_text_are_errors_of_the_trigger(spec):
    with pytest.raises(InvalidTriggerError):
        parse_trigger("excluding", spec)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"direction": "up"}, "direction"),
        ({"direction": ["next"]}, "direction"),
        ({"calendar": "A"}, "calendar"),
        ({"calendar": None}, "calendar"),
        ({"timezone": "Mars/Base"}, "timezone"),
        ({"trigger": 5}, "spec"),
        ({"more": 5}, "spec"),
        ({"trigger": {"kind": "cron", "spec": "*/5 * * * *"}}, "trigger"),
    ],
)
def test_an_invalid_text_of_business_days_names_the_field(changes, field):
    data = {"trigger": {"kind": "cron", "spec": "0 9 * * *"}, "direction": "next"}
    text = json.dumps({**data, "calendar": NAME, **changes})
    with pytest.raises(InvalidTriggerError) as raised:
        parse_trigger("on_business_day", text)
    assert raised.value.field == field


def test_business_days_are_a_value_and_text():
    rule = Cron("0 9 1 * *").on_business_day("previous", calendar=NAME)
    assert isinstance(rule, OnBusinessDay)
    assert rule.kind == "on_business_day"
    assert rule.spec == (
        '{"trigger":{"kind":"cron","spec":"0 9 1 * *"},'
        '"direction":"previous","calendar":"holidays-de"}'
    )
    assert Trigger.from_json(rule.to_json()) == rule
    assert replace(rule, direction="next") == Cron("0 9 1 * *").on_business_day(
        "next", calendar=NAME
    )
    assert rule.describe() == (
        "At 09:00, on day 1 of the month, UTC, moved to the previous business day of holidays-de"
    )
    in_seoul = parse_trigger(rule.kind, rule.spec, timezone="Asia/Seoul")
    assert in_seoul == rule.in_zone("Asia/Seoul")
    assert in_seoul.timezone == "Asia/Seoul"


def test_a_trigger_that_fires_more_than_24_times_a_day_is_refused():
    hourly = Cron("0 * * * *", timezone="Europe/Berlin")
    moved = hourly.on_business_day("next", calendar=NAME).resolved({NAME: CHRISTMAS})
    # The day on which the clock goes back has 25 hours. It is a Sunday: Monday has 24 hours.
    found = list(fire_times(moved, at(2026, 10, 22, 21, 59), at(2026, 10, 26, 22, 59)))
    assert len(found) == 48
    with pytest.raises(InvalidTriggerError, match="fires more than 24 times"):
        Every(1799).on_business_day("next", calendar=NAME)


def test_a_fire_time_that_would_move_more_than_31_days_is_dropped():
    dates = frozenset(date(2027, 1, 1) + n * DAY for n in range(40))
    days = CalendarDays(NAME, dates, weekend=frozenset())
    rule = DAILY.on_business_day("next", calendar=NAME).resolved({NAME: days})
    # 10 February is the first business day. The days from 10 January on move to it.
    found = list(fire_times(rule, at(2026, 12, 31, 12), at(2027, 2, 11)))
    assert [str(instant.date()) for instant in found] == ["2027-02-10"]
    monthly = Cron("0 9 9 1 *").on_business_day("next", calendar=NAME).resolved({NAME: days})
    assert monthly.next_after(at(2026, 12, 1)) == at(2028, 1, 9, 9)
