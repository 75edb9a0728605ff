"""A schedule has one offset in its window: through edits, downtime and the other policies."""

from datetime import date, timedelta

import pytest

from celery_dynbeat import Cron, InvalidArgumentError
from celery_dynbeat.testing import ManualBeat
from celery_dynbeat.triggers.zones import describe_instant
from tests.support.applications import START, application

MICROSECOND, MINUTE = timedelta(microseconds=1), timedelta(minutes=1)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
HOURLY = Cron("0 * * * *", timezone="UTC")
#: The offset of the schedule "n" of "user:42" in a window of an hour. It never changes.
OFFSET = timedelta(seconds=1636, microseconds=504861)


def at(hour):
    """Return when the fire time ``hour`` hours after START is sent."""
    return START + hour * HOUR + OFFSET


def kept(mine):
    return [
        ((run.fire_at - START) / HOUR, run.status, run.fire_count)
        for run in reversed(mine.runs(limit=99))
    ]


@pytest.fixture
def pass_to(clock, beat):
    def move(instant):
        clock.move_to(instant)
        beat.run_until_idle()

    return move


@pytest.mark.parametrize("window", [HOUR, "100%"])
def test_the_offset_is_the_same_at_each_fire_time_and_in_each_process(
    database_url, mine, clock, window
):
    mine.create("n", task="t", trigger=HOURLY, window=window)
    offsets = []
    for hour in (1, 2, 3):
        with application(database_url, clock=clock) as other:
            beat = ManualBeat(other)
            clock.move_to(at(hour) - MICROSECOND)
            beat.run_until_idle()
            assert len(mine.runs()) == hour - 1
            clock.move_to(at(hour))
            beat.run_until_idle()
            offsets.append(mine.runs()[0].sent_at - START - hour * HOUR)
    mine.rename("n", "renamed")

    assert offsets == [OFFSET] * 3
    assert mine.get("renamed").next_run_at == at(4)
    assert mine.get("renamed").window == window


@pytest.mark.parametrize(
    ("catch_up", "rows"),
    [
        ("latest", [(3, "skipped", 3), (4, "sent", 1)]),
        ("all", [(1, "sent", 1), (2, "sent", 1), (3, "sent", 1), (4, "sent", 1)]),
        ("none", [(4, "skipped", 4)]),
    ],
)
def test_after_downtime_the_fire_time_that_waits_in_its_window_is_not_due(
    mine, pass_to, catch_up, rows
):
    mine.create("n", task="t", trigger=HOURLY, window=HOUR, catch_up=catch_up)

    pass_to(at(5) - MINUTE)

    assert kept(mine) == rows
    pass_to(at(5))
    assert kept(mine) == [*rows, (5, "sent", 1)]


def test_a_fire_time_in_its_window_has_passed_for_skip(mine, pass_to):
    mine.create("n", task="t", trigger=HOURLY, window=HOUR)
    pass_to(START + HOUR)

    with pytest.raises(InvalidArgumentError, match="has passed"):
        mine.skip("n", START + HOUR)
    mine.skip("n", START + 2 * HOUR)
    pass_to(at(1))
    pass_to(at(3))

    assert kept(mine) == [(1, "sent", 1), (2, "skipped", 1), (3, "sent", 1)]


def test_explain_says_that_a_fire_time_waits_in_its_window(mine, pass_to):
    mine.create("n", task="t", trigger=HOURLY, window=HOUR)
    pass_to(START + HOUR + MINUTE)

    found, asked = mine.explain("n"), mine.explain("n", at=START + HOUR)

    assert found.cause == asked.cause == "in_window"
    assert f"waits in its window until {describe_instant(at(1))}" in found.sentence
    assert asked.sentence.startswith("2026-11-21 10:00 UTC is still due.")
    assert found.next[0].note == f"in its window: sent at {describe_instant(at(1))}"


def test_a_fire_time_that_waits_survives_an_edit_of_its_calendar(dynbeat, mine, pass_to):
    dynbeat.calendars.upsert("h", dates=[date(2026, 11, day) for day in (22, 23, 24)])
    daily = Cron("0 12 * * *", timezone="UTC").excluding(calendar="h")
    mine.create("n", task="t", trigger=daily, window="100%")
    place, noon = OFFSET / HOUR, START + 3 * HOUR
    assert mine.get("n").next_run_at - noon > DAY

    pass_to(noon + HOUR)
    dynbeat.calendars.upsert("h", dates=[date(2030, 1, 1)])
    pass_to(noon + HOUR)

    assert abs(mine.get("n").next_run_at - (noon + DAY * place)) < MINUTE / 1000
    for day in range(3):
        pass_to(noon + day * DAY + DAY * place + MINUTE)
    assert kept(mine) == [(hour, "sent", 1) for hour in (3, 27, 51)]


@pytest.mark.parametrize("window", ["100%", 3 * DAY])
def test_an_edit_of_its_calendar_changes_the_window_of_the_next_fire_time(
    dynbeat, mine, pass_to, window
):
    dynbeat.calendars.upsert("h", dates=[date(2026, 11, 22)])
    daily = Cron("0 12 * * *", timezone="UTC").excluding(calendar="h")
    mine.create("n", task="t", trigger=daily, window=window)
    first = START + 3 * HOUR
    assert abs(mine.get("n").next_run_at - (first + 2 * DAY * (OFFSET / HOUR))) < MINUTE / 1000

    dynbeat.calendars.upsert("h", dates=[date(2030, 1, 1)])
    pass_to(START + MINUTE)

    assert abs(mine.get("n").next_run_at - (first + DAY * (OFFSET / HOUR))) < MINUTE / 1000


@pytest.mark.parametrize(
    ("span", "rows"),
    [
        ({"start_at": START}, [(1, "sent", 1)]),
        ({"start_at": START + HOUR, "end_at": START + 2 * HOUR}, [(1, "sent", 1)]),
        ({"end_at": START + 9 * HOUR, "max_runs": 5}, [(1, "sent", 1)]),
        ({"start_at": START + 1.5 * HOUR}, [(1, "skipped", 1)]),
    ],
)
def test_a_new_span_keeps_a_fire_time_that_waits_in_it(mine, pass_to, span, rows):
    mine.create("n", task="t", trigger=HOURLY, window=HOUR)
    pass_to(START + HOUR + MINUTE)

    mine.update("n", **span)
    pass_to(at(1))

    assert kept(mine) == rows


@pytest.mark.parametrize(("old", "new"), [(0, HOUR), (HOUR, 0), ("100%", "10%")])
def test_a_new_setting_applies_from_the_next_plan_on(database_url, clock, old, new):
    with application(database_url, clock=clock, window=old) as dynbeat:
        dynbeat.schedules.for_owner("user:42").create("n", task="t", trigger=HOURLY)
    due = at(1) if old else START + HOUR

    with application(database_url, clock=clock, window=new) as dynbeat:
        mine = dynbeat.schedules.for_owner("user:42")
        (first,) = mine.upcoming("n", count=1)
        clock.move_to(START + HOUR + MICROSECOND)
        found = mine.explain("n")
        ManualBeat(dynbeat).run_until_idle()

        assert first.run_at == due
        assert (first.wait_note is not None) == (due > first.fire_at)
        assert (found.cause == "in_window") == (due > first.fire_at)
        assert kept(mine) == ([] if old else [(1, "sent", 1)])
