"""A schedule has one offset in its window: through edits, downtime and the other policies."""

from datetime import date, timedelta

import pytest

from celery_dynbeat import Cron, Every, InvalidArgumentError, Once
from celery_dynbeat.common.states import Status
from celery_dynbeat.testing import ManualBeat
from celery_dynbeat.triggers.zones import describe_instant
from tests.support.applications import START, application, execute
from tests.support.suites import each_database
from tests.support.worker_stub import WorkerStub

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


def test_a_share_is_of_the_distance_to_the_next_fire_time(mine, pass_to, sent):
    mine.create("n", task="t", trigger=Cron("0 10,12 * * *", timezone="UTC"), window="50%")
    place = OFFSET / HOUR

    assert abs(mine.get("n").next_run_at - (START + HOUR + HOUR * place)) < 2 * MICROSECOND
    pass_to(mine.get("n").next_run_at)
    # From 12:00 to 10:00 of the next day.
    assert abs(mine.get("n").next_run_at - (START + 3 * HOUR + 11 * HOUR * place)) < 2 * MICROSECOND
    assert len(sent) == 1


def test_the_setting_applies_to_a_schedule_without_a_window(database_url, clock):
    with application(database_url, clock=clock, window="50%") as dynbeat:
        mine = dynbeat.schedules.for_owner("user:42")
        made = mine.create("n", task="t", trigger=HOURLY)
        without = mine.create("without", task="t", trigger=HOURLY, window=0)

    assert (made.window, without.window) == (None, timedelta(0))
    assert abs(made.next_run_at - (START + HOUR + OFFSET / 2)) < 2 * MICROSECOND
    assert without.next_run_at == START + HOUR


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


def test_the_window_begins_at_the_end_of_quiet_hours(mine, pass_to, sent):
    mine.set_quiet_hours(["09:30-11:30"])
    mine.create("n", task="t", trigger=HOURLY, window="100%")

    # The next fire time after 11:30 is 12:00.
    due = START + 2.5 * HOUR + OFFSET / 2
    first, second = mine.upcoming("n", count=2)
    assert (first.fire_at, second.fire_at) == (START + 2 * HOUR, START + 3 * HOUR)
    assert abs(first.run_at - due) < 2 * MICROSECOND
    assert first.wait_note == f"in quiet hours: sent at {describe_instant(due)}"
    assert second.wait_note == f"in its window: sent at {describe_instant(at(3))}"
    pass_to(first.run_at - MICROSECOND)
    assert sent == []
    pass_to(first.run_at)
    assert kept(mine) == [(1, "skipped", 1), (2, "sent", 1)]
    assert mine.get("n").next_run_at == at(3)


def test_an_overlap_is_decided_at_the_effective_instant(dynbeat, mine, pass_to, sent):
    worker = WorkerStub(dynbeat)
    mine.create("n", task="t", trigger=HOURLY, window=HOUR, overlap="skip")
    pass_to(at(1))

    pass_to(START + 2 * HOUR)
    assert worker.start(sent[-1])
    worker.finish(sent[-1])
    pass_to(at(2))
    pass_to(at(3))

    assert kept(mine) == [(1, "succeeded", 1), (2, "sent", 1), (3, "skipped", 1)]


def test_a_fire_time_in_its_window_has_passed_for_skip(mine, pass_to):
    mine.create("n", task="t", trigger=HOURLY, window=HOUR)
    pass_to(START + HOUR)

    with pytest.raises(InvalidArgumentError, match="has passed"):
        mine.skip("n", START + HOUR)
    mine.skip("n", START + 2 * HOUR)
    pass_to(at(1))
    pass_to(at(3))

    assert kept(mine) == [(1, "sent", 1), (2, "skipped", 1), (3, "sent", 1)]


def test_a_pause_ends_the_wait_in_the_window(mine, pass_to):
    mine.create("n", task="t", trigger=HOURLY, window=HOUR)
    pass_to(START + HOUR)

    mine.pause("n")
    pass_to(at(1))
    assert kept(mine) == []
    resumed = mine.resume("n")

    assert kept(mine) == [(1, "skipped", 1)]
    assert resumed.next_run_at == at(2)


@each_database
def test_a_hold_that_ends_after_the_offset_lets_the_run_go_at_once(mine, pass_to):
    mine.create("n", task="t", trigger=HOURLY, window=HOUR)
    mine.hold(reason="r")
    pass_to(at(1))
    assert kept(mine) == []

    mine.release()
    pass_to(at(1) + MINUTE)

    assert kept(mine) == [(1, "sent", 1)]


def test_an_edit_of_the_window_moves_only_the_run(mine, clock, pass_to):
    mine.create("n", task="t", trigger=HOURLY, window=HOUR)
    pass_to(START + HOUR)

    moved = mine.update("n", window="50%")
    assert abs(moved.next_run_at - (START + HOUR + OFFSET / 2)) < 2 * MICROSECOND
    at_once = mine.update("n", window=0)
    assert at_once.next_run_at == clock.now()
    pass_to(START + HOUR)

    assert kept(mine) == [(1, "sent", 1)]


def test_a_one_off_has_an_offset_in_a_duration_only(mine):
    once = Once(START + HOUR)

    assert mine.create("n", task="t", trigger=once, window=HOUR).next_run_at == at(1)
    assert mine.update("n", window="100%").next_run_at == START + HOUR


def test_a_window_that_sql_has_damaged_quarantines_its_schedule_alone(dynbeat, mine, pass_to):
    for name in ("n", "other"):
        mine.create(name, task="t", trigger=HOURLY, window=MINUTE)
    quoted = dynbeat.context.database.engine.dialect.identifier_preparer.quote("window")
    execute(dynbeat, f"UPDATE dynbeat_schedule SET {quoted} = '500%' WHERE name = 'n'")

    pass_to(START + HOUR + MINUTE)

    assert "window = '500%'" in mine.get("n").error
    assert [run.name for run in mine.runs()] == ["other"]
    assert mine.update("n", window="50%").error is None


def test_explain_says_that_a_fire_time_waits_in_its_window(mine, pass_to):
    mine.create("n", task="t", trigger=HOURLY, window=HOUR)
    pass_to(START + HOUR + MINUTE)

    found, asked = mine.explain("n"), mine.explain("n", at=START + HOUR)

    assert found.cause == asked.cause == "in_window"
    assert f"waits in its window until {describe_instant(at(1))}" in found.sentence
    assert asked.sentence.startswith("2026-11-21 10:00 UTC is still due.")
    assert found.next[0].note == f"in its window: sent at {describe_instant(at(1))}"


def test_many_short_intervals_with_a_window_are_sent_in_order(mine, pass_to, sent):
    mine.create("n", task="t", trigger=Every(60, anchor=START), window="100%", catch_up="all")

    for minute in range(1, 6):
        pass_to(START + minute * MINUTE)

    assert [run.fire_at for run in sent] == [START + n * MINUTE for n in range(1, 5)]
    assert {run.status for run in mine.runs()} == {Status.SENT}


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


@pytest.mark.parametrize("restored", [False, True])
def test_a_calendar_that_excludes_the_day_of_a_fire_time_that_waits_drops_only_that(
    dynbeat, mine, pass_to, restored
):
    dynbeat.calendars.upsert("h", dates=[date(2030, 1, 1)])
    daily = Cron("0 12 * * *", timezone="UTC").excluding(calendar="h")
    mine.create("n", task="t", trigger=daily, window=HOUR)
    noon = START + 3 * HOUR

    pass_to(noon + MINUTE)
    dynbeat.calendars.upsert("h", dates=[noon.date()])
    pass_to(noon + 2 * MINUTE)
    if restored:
        dynbeat.calendars.upsert("h", dates=[date(2030, 1, 1)])
        pass_to(noon + 3 * MINUTE)
    for day in range(3):
        pass_to(at(3) + day * DAY)

    assert kept(mine) == [(hour, "sent", 1) for hour in (3, 27, 51)[not restored :]]


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


def test_a_new_start_of_an_interval_keeps_a_fire_time_that_waits(mine, pass_to):
    mine.create("n", task="t", trigger=Every(HOUR), window="100%")
    pass_to(START + HOUR + MINUTE)

    # The next fire time is now 10:10.
    moved = mine.update("n", start_at=START + MINUTE * 10)
    due = START + HOUR + 10 * MINUTE * (OFFSET / HOUR)
    assert abs(moved.next_run_at - due) < MINUTE / 1000
    pass_to(due + MINUTE)

    assert kept(mine) == [(1, "sent", 1)]
    assert mine.upcoming("n", count=1)[0].fire_at == START + HOUR + 10 * MINUTE


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
