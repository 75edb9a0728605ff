"""Beat passes skipped fire times: with each ``catch_up``, after downtime, with several beats."""

from datetime import timedelta

import pytest
from sqlalchemy import event

from celery_dynbeat import AnyOf, Every, InvalidScheduleError, Once
from celery_dynbeat.beat.maintenance import prune_runs
from celery_dynbeat.common.states import Status
from celery_dynbeat.planning.plan import TOO_NEAR
from celery_dynbeat.store.runs import unfinished
from celery_dynbeat.testing import FrozenClock, ManualBeat
from tests.support.applications import MINUTELY, START, application, execute, instants
from tests.support.executed_statements import record_statements
from tests.support.suites import one_database
from tests.support.worker_stub import WorkerStub

MINUTE = timedelta(minutes=1)


def at(*minutes):
    return [START + minute * MINUTE for minute in minutes]


def kept(mine):
    """Return minute, status and fire count of each row of history, oldest first."""
    return [
        ((run.scheduled_for - START) / MINUTE, run.status, run.fire_count)
        for run in reversed(mine.runs(limit=99))
    ]


@one_database
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

    assert [run.scheduled_for for run in sent] == at(1, 2, 5, 6)


def test_skipped_fire_times_do_not_count_for_max_runs(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY, max_runs=3)
    mine.skip("n", at(2)[0])
    for _ in range(6):
        clock.advance(MINUTE)
        beat.run_until_idle()

    assert [run.scheduled_for for run in sent] == at(1, 3, 4)
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


def test_two_beats_pass_it_without_a_run(dynbeat, mine, clock):
    beats = [ManualBeat(dynbeat), ManualBeat(dynbeat)]
    mine.create("n", task="t", trigger=MINUTELY, catch_up="all")
    mine.skip("n", at(2)[0])
    for minute in range(4):
        clock.advance(MINUTE)
        beats[minute % 2].run_until_idle()
        beats[1 - minute % 2].run_until_idle()

    assert kept(mine) == [(1, "sent", 1), (2, "skipped", 1), (3, "sent", 1), (4, "sent", 1)]


def test_a_beat_that_ignores_skips_does_not_start_the_fire_time(dynbeat, mine, clock, beat, sent):
    # As a beat of the previous version leaves it, and as it plans.
    mine.create("n", task="t", trigger=MINUTELY, max_runs=2)
    mine.skip("n", at(1)[0])
    execute(
        dynbeat,
        "UPDATE dynbeat_schedule SET skipped_until = NULL, next_fire_at = :at, next_run_at = :at",
        at=at(1)[0],
    )
    for _ in range(4):
        clock.advance(MINUTE)
        beat.run_until_idle()

    assert [run.scheduled_for for run in sent] == at(2, 3)


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

    mine.backfill("n", since=at(1)[0], until=at(5)[0] + timedelta(seconds=1))
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


def test_history_keeps_a_skip_until_it_has_passed(dynbeat, mine, clock, beat):
    mine.create("n", task="t", trigger=Every(86_400, anchor=START))
    when = START + timedelta(days=40)
    mine.skip("n", when)
    month = timedelta(days=30)

    def prune():
        now = clock.now()
        return prune_runs(dynbeat.context.database, now=now, older_than=month).deleted

    clock.advance(timedelta(days=39))
    assert prune() == 0
    clock.advance(timedelta(days=2))
    beat.run_until_idle()
    assert prune() == 0
    assert when in [run.scheduled_for for run in mine.runs()]
    clock.advance(timedelta(days=31))
    beat.run_until_idle()
    prune()
    assert when not in [run.scheduled_for for run in mine.runs()]


def test_skips_do_not_hide_failures_in_a_row(dynbeat, mine, clock, beat, sent, monkeypatch):
    monkeypatch.setattr(unfinished, "UNTRIED_MARGIN", 3)
    worker = WorkerStub(dynbeat)
    mine.create("n", task="t", trigger=MINUTELY, pause_after_failures=2)
    for when in at(11, 12, 13, 14, 15, 16):
        mine.skip("n", when)
    for _ in range(2):
        clock.advance(MINUTE)
        beat.run_until_idle()
        worker.heartbeat()
        worker.start(sent[-1])
        worker.finish(sent[-1], Status.FAILED)
    clock.advance(MINUTE)
    beat.run_until_idle()

    assert mine.get("n").paused_reason.startswith("2 failures in a row")


def test_only_a_batch_with_skips_reads_them_and_in_one_query(dynbeat, mine, clock, beat):
    for number in range(5):
        mine.create(f"n{number}", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    beat.run_until_idle()

    assert queries_of_skips(dynbeat, clock, beat) == 0
    mine.skip("n1", at(4)[0])
    mine.skip("n2", at(9)[0])
    assert queries_of_skips(dynbeat, clock, beat) == 1
    clock.move_to(at(10)[0])
    beat.run_until_idle()
    assert queries_of_skips(dynbeat, clock, beat) == 0


def queries_of_skips(dynbeat, clock, beat):
    """Return the number of queries of skipped fire times in the pass of the next minute."""
    statements = []

    def note(_connection, _cursor, statement, _values, _context, _many):
        statements.append(statement)

    engine = dynbeat.context.database.engine
    event.listen(engine, "before_cursor_execute", note)
    clock.advance(MINUTE)
    beat.run_until_idle()
    event.remove(engine, "before_cursor_execute", note)
    return sum("created_at < dynbeat_run.finished_at" in each for each in statements)


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_the_query_of_skips_reads_no_other_history(request, kind):
    clock = FrozenClock(START)
    with application(request.getfixturevalue(f"{kind}_url"), clock=clock) as dynbeat:
        dynbeat.context.prepare()
        if kind == "postgresql":
            # Statistics of 302 rows would make a sequential scan the cheapest plan.
            execute(dynbeat, "ALTER TABLE dynbeat_run SET (autovacuum_enabled = off)")
        mine, beat = dynbeat.schedules.for_owner("user:42"), ManualBeat(dynbeat)
        for name in ("a", "b"):
            mine.create(name, task="t", trigger=MINUTELY, catch_up="all")
        clock.advance(150 * MINUTE)
        beat.run_until_idle()
        for name in ("a", "b"):
            mine.skip(name, at(153)[0])
        clock.advance(MINUTE)
        with record_statements(dynbeat.context.database.engine) as statements:
            beat.run_until_idle()

    (query,) = [each for each in statements if "created_at < dynbeat_run.finished_at" in each.sql]
    assert query.rows <= 10


def pass_minutes(clock, beat, number):
    for _ in range(number):
        clock.advance(MINUTE)
        beat.run_until_idle()


def test_a_skip_that_beat_passed_cannot_be_put_back_behind_a_clock_set_back(mine, clock, beat):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.skip("n", at(2)[0])
    pass_minutes(clock, beat, 5)
    rows = kept(mine)
    clock.move_to(at(1)[0])

    with pytest.raises(InvalidScheduleError, match="has passed: beat decided on a later one"):
        mine.unskip("n", at(2)[0])

    assert kept(mine) == rows
    pass_minutes(clock, beat, 4)
    assert kept(mine) == rows


def test_a_skip_that_no_later_fire_time_follows_is_put_back_behind_a_clock_set_back(
    mine, clock, beat, sent
):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.skip("n", at(2)[0])
    clock.move_to(START + 2.5 * MINUTE)
    beat.run_until_idle()
    clock.move_to(START + 1.5 * MINUTE)

    mine.unskip("n", at(2)[0])
    clock.move_to(at(2)[0])
    beat.run_until_idle()

    assert [run.scheduled_for for run in sent] == at(1, 2)


def test_an_edit_behind_a_clock_set_back_plans_with_the_skips_from_there(mine, clock, beat):
    mine.create("n", task="t", trigger=MINUTELY)
    for when in at(2, 9):
        mine.skip("n", when)
    pass_minutes(clock, beat, 5)
    mine.unskip("n", at(9)[0])
    clock.move_to(at(1)[0])

    mine.update("n", max_runs=50)
    assert instants(mine.upcoming("n", count=2)) == at(3, 4)

    mine.unskip("n", at(2)[0])
    assert instants(mine.upcoming("n", count=2)) == at(2, 3)
    assert mine.update("n", trigger=Every(420)).next_run_at == at(8)[0]


def test_an_edit_behind_a_clock_set_back_removes_the_skips_that_it_does_not_yield(
    mine, clock, beat, sent
):
    mine.create("n", task="t", trigger=MINUTELY)
    for when in at(2, 9):
        mine.skip("n", when)
    pass_minutes(clock, beat, 5)
    mine.unskip("n", at(9)[0])
    clock.move_to(at(1)[0])

    mine.update("n", trigger=Every(420))
    pass_minutes(clock, beat, 7)

    assert 2 not in [minute for minute, *_ in kept(mine)]
    assert [run.scheduled_for for run in sent] == at(1, 3, 4, 5, 8)
