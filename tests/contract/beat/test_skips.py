"""Beat passes skipped fire times: with each ``catch_up``, after downtime, with several beats."""

from datetime import timedelta

import pytest
from sqlalchemy import event, select

from celery_dynbeat import AnyOf, ConflictError, Every, InvalidArgumentError, Once
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.planning.plan import TOO_NEAR
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, START, execute, instants
from tests.support.suites import each_database
from tests.support.worker_stub import WorkerStub

MINUTE = timedelta(minutes=1)


def at(*minutes):
    return [START + minute * MINUTE for minute in minutes]


def kept(mine):
    """Return minute, status and fire count of each row of history, oldest first."""
    return [
        ((run.fire_at - START) / MINUTE, run.status, run.fire_count)
        for run in reversed(mine.runs(limit=99))
    ]


@pytest.mark.parametrize(
    ("catch_up", "rows"),
    [
        ("latest", [(2, "skipped", 1), (3, "skipped", 2), (4, "sent", 1), (5, "skipped", 1)]),
        (
            "all",
            [(1, "sent", 1), (2, "skipped", 1), (3, "sent", 1), (4, "sent", 1), (5, "skipped", 1)],
        ),
        ("none", [(2, "skipped", 1), (4, "skipped", 3), (5, "skipped", 1)]),
    ],
)
def test_downtime_counts_each_fire_time_once(mine, clock, beat, catch_up, rows):
    mine.create("n", task="t", trigger=MINUTELY, catch_up=catch_up)
    for when in at(2, 5):
        mine.skip("n", when)
    clock.move_to(START + 5.6 * MINUTE)
    beat.run_until_idle()

    assert kept(mine) == rows
    assert instants(mine.upcoming("n", count=1)) == at(6)


def test_a_beat_in_time_skips_only_the_skipped_fire_time(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY, window=20)
    mine.skip("n", at(3)[0])
    mine.skip("n", at(4)[0])
    for _ in range(6):
        clock.advance(MINUTE)
        clock.advance(timedelta(seconds=20))
        beat.run_until_idle()
        clock.advance(timedelta(seconds=-20))

    assert [run.fire_at for run in sent] == at(1, 2, 5, 6)


def test_skipped_fire_times_do_not_count_for_max_runs(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY, max_runs=3)
    mine.skip("n", at(2)[0])
    for _ in range(6):
        clock.advance(MINUTE)
        beat.run_until_idle()

    assert [run.fire_at for run in sent] == at(1, 3, 4)
    assert mine.get("n").finished_at == at(4)[0]


def test_the_next_run_waits_for_overlap_as_if_the_fire_time_did_not_exist(
    dynbeat, mine, clock, beat, sent
):
    mine.create("n", task="t", trigger=MINUTELY, overlap="buffer_one")
    mine.skip("n", at(2)[0])
    clock.advance(MINUTE)
    beat.run_until_idle()
    worker = WorkerStub(dynbeat)
    assert worker.start(sent[0])
    for _ in range(3):
        clock.advance(MINUTE)
        worker.heartbeat()
        beat.run_until_idle()

    assert kept(mine) == [
        (1, "running", 1),
        (2, "skipped", 1),
        (3, "pending", 1),
        (4, "skipped", 1),
    ]


@each_database
def test_two_beats_pass_it_without_a_run(dynbeat, mine, clock):
    beats = [ManualBeat(dynbeat), ManualBeat(dynbeat)]
    mine.create("n", task="t", trigger=MINUTELY, catch_up="all")
    mine.skip("n", at(2)[0])
    for minute in range(4):
        clock.advance(MINUTE)
        beats[minute % 2].run_until_idle()
        beats[1 - minute % 2].run_until_idle()

    assert kept(mine) == [(1, "sent", 1), (2, "skipped", 1), (3, "sent", 1), (4, "sent", 1)]


@each_database
def test_a_row_whose_next_fire_time_is_skipped_moves_on(dynbeat, mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.skip("n", at(1)[0])
    execute(
        dynbeat,
        "UPDATE dynbeat_schedule SET next_fire_at = :at, next_run_at = :at",
        at=at(1)[0],
    )
    clock.advance(MINUTE)
    beat.run_until_idle()

    assert (sent, mine.get("n").next_run_at) == ([], at(2)[0])
    assert kept(mine) == [(1, "skipped", 1)]


def test_an_unplanned_row_is_planned_without_the_skipped_fire_times(dynbeat, mine, beat):
    mine.create("n", task="t", trigger=MINUTELY)
    for when in at(1, 2):
        mine.skip("n", when)
    execute(dynbeat, "UPDATE dynbeat_schedule SET next_run_at = NULL, next_fire_at = NULL")
    beat.run_until_idle()

    assert mine.get("n").next_run_at == at(3)[0]


def test_fire_times_that_min_interval_excludes_are_counted_despite_a_skip(limited, clock):
    dynbeat = limited(min_interval=40)
    mine, beat = dynbeat.schedules.for_owner("user:42"), ManualBeat(dynbeat)
    near = AnyOf(Every(60, anchor=START), Once(START + 1.5 * MINUTE), Once(START + 5.5 * MINUTE))
    execute_without_limit = limited(min_interval=0).schedules.for_owner("user:42")
    execute_without_limit.create("n", task="t", trigger=near)
    clock.move_to(at(1)[0])
    beat.run_until_idle()
    mine.skip("n", at(2)[0])
    mine.skip("n", at(6)[0])
    for minute in range(2, 8):
        clock.move_to(at(minute)[0])
        beat.run_until_idle()

    assert [(when, count) for when, status, count in kept(mine) if status == "skipped"] == [
        (1.5, 1),
        (2, 1),
        (5.5, 1),
        (6, 1),
    ]
    assert [run.error for run in mine.runs(limit=99) if run.error == TOO_NEAR] == [TOO_NEAR] * 2


def test_a_backfill_runs_a_past_skipped_fire_time(mine, clock, beat):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.skip("n", at(3)[0])
    clock.move_to(START + 5.5 * MINUTE)
    beat.run_until_idle()
    assert kept(mine) == [(3, "skipped", 1), (4, "skipped", 3), (5, "sent", 1)]

    span = {"since": at(1)[0], "until": at(5)[0] + timedelta(seconds=1)}
    mine.backfill("n", **span, per_minute=6_000)
    beat.run_until_idle()

    assert kept(mine) == [(minute, "sent", 1) for minute in range(1, 6)]


def test_a_backfill_keeps_the_counts_of_the_other_skipped_fire_times(mine, clock, beat):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.skip("n", at(3)[0])
    clock.move_to(START + 5.5 * MINUTE)
    beat.run_until_idle()

    mine.backfill("n", since=at(2)[0], until=at(2)[0] + timedelta(seconds=1))
    beat.run_until_idle()

    assert kept(mine) == [
        (1, "skipped", 1),
        (2, "sent", 1),
        (3, "skipped", 1),
        (4, "skipped", 1),
        (5, "sent", 1),
    ]


def test_a_skip_that_was_run_by_a_backfill_divides_the_row_around_it(mine, clock, beat):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.skip("n", at(3)[0])
    clock.move_to(START + 6.5 * MINUTE)
    beat.run_until_idle()
    for minute in (3, 1, 5):
        mine.backfill("n", since=at(minute)[0], until=at(minute)[0] + timedelta(seconds=1))
        beat.run_until_idle()

    assert kept(mine) == [
        (1, "sent", 1),
        (2, "skipped", 1),
        (3, "sent", 1),
        (4, "skipped", 1),
        (5, "sent", 1),
        (6, "sent", 1),
    ]


@each_database
def test_a_skip_moves_from_the_row_to_the_history_with_the_next_run(dynbeat, mine, clock, beat):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.bound(actor="alice").skip("n", at(2)[0], reason="holiday")
    mine.skip("n", at(4)[0])
    pass_minutes(clock, beat, 2)
    assert kept(mine) == [(1, "sent", 1)]

    pass_minutes(clock, beat, 1)

    assert kept(mine) == [(1, "sent", 1), (2, "skipped", 1), (3, "sent", 1)]
    assert mine.runs(limit=9).items[1].error == "skipped by alice: holiday"
    assert stored(dynbeat) == [{at(4)[0].isoformat(): "skipped by a call"}]
    pass_minutes(clock, beat, 2)
    assert stored(dynbeat) == [None]


def stored(dynbeat):
    with dynbeat.context.database.engine.connect() as connection:
        return list(connection.scalars(select(Schedule.skips)))


def test_a_skip_that_an_edit_made_invalid_is_dropped_without_a_record(dynbeat, mine, clock, beat):
    mine.create("n", task="t", trigger=MINUTELY)
    for when in at(2, 3, 4):
        mine.skip("n", when)
    mine.update("n", trigger=Every(120, anchor=START), start_at=at(3)[0])
    pass_minutes(clock, beat, 6)

    assert kept(mine) == [(4, "skipped", 1), (6, "sent", 1)]
    assert stored(dynbeat) == [None]


def test_a_schedule_whose_last_fire_times_are_skipped_finishes_after_them(mine, clock, beat):
    mine.create("n", task="t", trigger=MINUTELY, end_at=at(3)[0])
    for when in at(1, 2, 3):
        mine.skip("n", when)
    pass_minutes(clock, beat, 2)
    assert mine.get("n").finished_at is None
    pass_minutes(clock, beat, 1)

    assert kept(mine) == [(1, "skipped", 1), (2, "skipped", 1), (3, "skipped", 1)]
    assert mine.get("n").finished_at == at(3)[0]


def test_a_skip_that_passed_in_a_pause_is_recorded_by_the_resume(mine, clock, beat):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.skip("n", at(2)[0])
    mine.pause("n")
    pass_minutes(clock, beat, 3)
    mine.resume("n")
    assert kept(mine) == [(2, "skipped", 1), (3, "skipped", 2)]
    pass_minutes(clock, beat, 1)

    assert kept(mine) == [(2, "skipped", 1), (3, "skipped", 2), (4, "sent", 1)]


@each_database
def test_a_claim_with_skips_executes_the_statements_of_one_without(dynbeat, mine, clock, beat):
    for name in ("a", "b"):
        mine.create(name, task="t", trigger=MINUTELY)
    pass_minutes(clock, beat, 1)
    statements = []

    def note(_connection, _cursor, statement, _values, _context, _many):
        statements.append(statement)

    event.listen(dynbeat.context.database.engine, "before_cursor_execute", note)
    pass_minutes(clock, beat, 1)
    without_skips = [*statements]
    for name in ("a", "b"):
        mine.skip(name, at(9)[0])
    statements.clear()
    pass_minutes(clock, beat, 1)

    assert {*statements} <= {*without_skips}


def pass_minutes(clock, beat, number):
    for _ in range(number):
        clock.advance(MINUTE)
        beat.run_until_idle()


@each_database
def test_a_recorded_skip_stays_skipped_when_the_clock_is_set_back(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.skip("n", at(2)[0])
    pass_minutes(clock, beat, 5)
    rows = kept(mine)
    clock.move_to(at(1)[0])

    with pytest.raises(InvalidArgumentError, match="is not skipped by a call"):
        mine.unskip("n", at(2)[0])
    with pytest.raises(ConflictError, match="already has a run"):
        mine.skip("n", at(2)[0])
    mine.update("n", max_runs=50)
    pass_minutes(clock, beat, 4)

    assert kept(mine) == rows
    assert at(2)[0] not in [run.fire_at for run in sent]


@pytest.mark.parametrize("value", ['{"soon": "x"}', '{"2026-11-21T09:02:00": "x"}'])
def test_skips_that_sql_made_unreadable_quarantine_only_their_schedule(
    dynbeat, mine, clock, beat, sent, value
):
    for name in ("a", "b"):
        mine.create(name, task="t", trigger=MINUTELY)
    execute(dynbeat, "UPDATE dynbeat_schedule SET skips = :value WHERE name = 'a'", value=value)
    pass_minutes(clock, beat, 1)

    assert "is not what skip() writes" in mine.get("a").error
    assert [run.name for run in sent] == ["b"]
    assert mine.list().items[0].name == "a"


def test_a_skipped_one_off_on_a_day_that_its_calendar_takes_finishes(dynbeat, mine, clock, beat):
    dynbeat.calendars.upsert("c", dates=[START.date() - timedelta(days=9)])
    mine.create("n", task="t", trigger=Once(START + 5 * MINUTE).excluding(calendar="c"))
    mine.skip("n", START + 5 * MINUTE)
    dynbeat.calendars.upsert("c", dates=[START.date()])

    clock.advance(10 * MINUTE)
    beat.run_until_idle()

    info = mine.get("n")
    assert info.error is None
    assert info.finished_at is not None
