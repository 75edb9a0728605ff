"""A claim locks, plans and records due rows: catch_up, start_at and end_at, max_runs, batches."""

import threading
from datetime import timedelta

import pytest

from celery_dynbeat import Once
from celery_dynbeat.beat import refused
from celery_dynbeat.beat.claim import claim
from celery_dynbeat.store.schedules import due
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, START, application
from tests.support.suites import each_database
from tests.support.waiting import wait_until

MINUTE = timedelta(minutes=1)


def kept(mine):
    """Return the history as (minute, status, count), oldest first."""
    return [
        ((run.fire_at - START) / MINUTE, run.status, run.fire_count)
        for run in reversed(mine.runs(limit=1000))
    ]


def claim_once(dynbeat, session, clock):
    return claim(session, now=clock.now(), settings=dynbeat.context.settings)


@each_database
def test_a_claim_skips_rows_that_another_beat_has_locked_or_waits_for_them(dynbeat, mine, clock):
    for name in ("a", "b", "c"):
        mine.create(name, task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    database, others = dynbeat.context.database, []

    def claim_the_rest():
        claimed = database.run(lambda session: claim_once(dynbeat, session, clock))
        others.append(sorted(run.name for run in claimed.outgoing))

    second = threading.Thread(target=claim_the_rest)
    with database._session() as holder:
        database.capabilities.begin_write(holder.connection())
        due.lock_due(holder, now=clock.now(), limit=1)
        second.start()
        if database.capabilities.embedded:
            assert others == []
        else:
            wait_until(lambda: others, within=10)
            assert others == [["b", "c"]]
        holder.rollback()
    second.join(10)

    assert others == [["a", "b", "c"] if database.capabilities.embedded else ["b", "c"]]


@each_database
def test_a_claim_that_rolls_back_changes_nothing(dynbeat, mine, clock, beat, sent):
    before = mine.create("n", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)

    with dynbeat.context.database._session() as session:
        assert claim_once(dynbeat, session, clock).handled == 1
        session.rollback()

    assert (mine.get("n"), mine.runs()) == (before, [])
    beat.run_until_idle()
    assert len(sent) == 1


def test_a_fire_time_that_already_has_a_run_is_not_sent_again(dynbeat, mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    beat.run_until_idle()

    with dynbeat.context.database.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE dynbeat_schedule SET"
            " next_run_at = (SELECT fire_at FROM dynbeat_run),"
            " next_fire_at = (SELECT fire_at FROM dynbeat_run)"
        )
    beat.run_until_idle()

    assert len(sent) == 1
    assert kept(mine) == [(1, "sent", 1)]
    assert mine.get("n").next_run_at == START + 2 * MINUTE


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"catch_up": "latest"}, [(9, "skipped", 9), (10, "sent", 1)]),
        ({"catch_up": "none"}, [(10, "sent", 1)]),
        ({"catch_up": "all"}, [(minute, "sent", 1) for minute in range(1, 11)]),
        (
            {"catch_up": "all", "catch_up_window": 150},
            [(7, "skipped", 7), (8, "sent", 1), (9, "sent", 1), (10, "sent", 1)],
        ),
        ({"catch_up_window": 1}, [(10, "skipped", 10)]),
    ],
    ids=["latest", "none", "all", "window", "too-old"],
)
def test_missed_fire_times_are_sent_or_recorded_as_skipped(mine, clock, beat, fields, expected):
    mine.create("n", task="t", trigger=MINUTELY, **fields)
    # Five seconds after the tenth fire time: in time for "none", too late for a 1 s window.
    clock.advance(timedelta(minutes=10, seconds=5))

    beat.run_until_idle()

    if fields == {"catch_up": "none"}:
        expected = [(9, "skipped", 9), *expected]
    assert kept(mine) == expected
    assert mine.get("n").next_run_at == START + 11 * MINUTE


def test_catch_up_none_skips_fire_times_that_no_beat_could_send_in_time(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY, catch_up="none")
    clock.advance(timedelta(minutes=3, seconds=45))

    beat.run_until_idle()

    assert (kept(mine), sent) == ([(3, "skipped", 3)], [])


def test_catch_up_all_sends_all_missed_fire_times_oldest_first(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY, catch_up="all")
    clock.advance(250 * MINUTE)

    beat.run_until_idle()

    times = [START + minute * MINUTE for minute in range(1, 251)]
    assert [run.fire_at for run in sent] == times


def test_a_schedule_finishes_with_its_last_run(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY, max_runs=2)
    for _ in range(4):
        clock.advance(MINUTE)
        beat.run_until_idle()

    finished = mine.get("n")
    assert (finished.run_count, finished.next_run_at, len(sent)) == (2, None, 2)
    assert finished.finished_at == START + 2 * MINUTE


def test_catch_up_sends_no_more_runs_than_max_runs_allows(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY, max_runs=3, catch_up="all")
    clock.advance(10 * MINUTE)

    beat.run_until_idle()

    assert [run.fire_at for run in sent] == [START + n * MINUTE for n in (1, 2, 3)]
    assert mine.get("n").finished_at == clock.now()


def test_a_schedule_fires_at_end_at_and_not_after(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY, end_at=START + 2 * MINUTE)
    for _ in range(4):
        clock.advance(MINUTE)
        beat.run_until_idle()

    assert [run.fire_at for run in sent] == [START + MINUTE, START + 2 * MINUTE]
    assert mine.get("n").finished_at == START + 2 * MINUTE


def test_a_missed_one_off_is_sent_late_and_once(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=Once(START + MINUTE))
    clock.advance(timedelta(days=3))

    beat.run_until_idle()

    assert [run.fire_at for run in sent] == [START + MINUTE]
    assert mine.get("n").finished_at == clock.now()


def test_nothing_fires_a_microsecond_early(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY)

    clock.move_to(START + MINUTE - timedelta(microseconds=1))
    beat.run_until_idle()
    assert sent == []

    clock.advance(timedelta(microseconds=1))
    beat.run_until_idle()
    assert len(sent) == 1


def test_a_backlog_larger_than_a_batch_is_sent_in_batches(database_url, clock, monkeypatch):
    monkeypatch.setattr(refused, "BATCH_SIZE", 50)
    with application(database_url, clock=clock, catch_up="all") as dynbeat:
        mine = dynbeat.schedules.for_owner("user:42")
        for number in range(5):
            mine.create(f"n{number}", task="t", trigger=MINUTELY)
        beat = ManualBeat(dynbeat)
        clock.advance(timedelta(minutes=45))

        beat.tick()
        first_batch = len(beat.publisher.sent)
        beat.run_until_idle()

    assert first_batch == 50
    fire_times = {(run.name, run.fire_at) for run in beat.publisher.sent}
    assert len(fire_times) == len(beat.publisher.sent) == 5 * 45
