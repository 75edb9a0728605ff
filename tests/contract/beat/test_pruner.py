"""Old history is deleted in small batches. Runs that a clock set back needs stay."""

import threading
from datetime import timedelta

import pytest

from celery_dynbeat import Cron
from celery_dynbeat.beat import pruning, refused
from celery_dynbeat.beat.pruning import BATCH_PAUSE, FIRST_DELAY, SCAN_INTERVAL
from celery_dynbeat.cli.maintenance import _prune
from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Origin, Run
from celery_dynbeat.store import runs
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import START, application, execute
from tests.support.suites import each_database

DAY = timedelta(days=1)
DAILY = Cron("0 12 * * *")
NOON = START + timedelta(hours=3)
KEPT = 3 * DAY
#: Beat itself prunes nothing within this time.
LONG = 399 * DAY


def pruned(dynbeat, *, older_than=KEPT):
    """Prune the whole history and return the number of deleted runs."""
    return _prune(dynbeat.context, pruning.prune_runs, older_than, what="runs deleted").deleted


def finish_all(dynbeat):
    ended = "UPDATE dynbeat_run SET status = 'succeeded', overdue_at = NULL, finished_at = :now"
    execute(dynbeat, f"{ended} WHERE finished_at IS NULL", now=dynbeat.context.clock.now())


def live_through(dynbeat, clock, beat, *, days):
    """Run beat for some days; the runs of each day end at once."""
    for _ in range(days):
        clock.advance(DAY)
        beat.run_until_idle()
        finish_all(dynbeat)


def fire_times(mine):
    return sorted(run.fire_at for run in mine.runs(limit=1_000))


@pytest.fixture
def dynbeat(database_url, clock):
    with application(database_url, clock=clock, history_retention=LONG) as made:
        made.context.prepare()
        yield made


@pytest.fixture
def aged(dynbeat, mine, clock, beat):
    """Give an owner with a daily schedule that has fired for eight days. All runs have ended."""
    mine.create("n", task="t", trigger=DAILY)
    live_through(dynbeat, clock, beat, days=8)
    return mine


def test_runs_that_ended_before_the_retention_are_deleted(aged, dynbeat):
    # A run that ended exactly at the limit stays.
    assert pruned(dynbeat) == 4
    assert fire_times(aged) == [NOON + day * DAY for day in range(4, 8)]
    assert pruned(dynbeat) == 0


def test_a_run_that_has_not_ended_stays_at_any_age(dynbeat, mine, clock, beat):
    mine.create("n", task="t", trigger=DAILY)
    clock.advance(DAY)
    beat.run_until_idle()
    mine.run_now("n")
    live_through(dynbeat, clock, beat, days=0)
    clock.advance(400 * DAY)
    beat.run_until_idle()

    assert pruned(dynbeat) == 0
    assert [run.fire_at for run in mine.runs(status="sent")].count(NOON) == 1


def test_a_long_run_stays_for_the_retention_after_its_end(dynbeat, mine, clock, beat):
    mine.create("n", task="t", trigger=DAILY)
    clock.advance(DAY)
    beat.run_until_idle()
    mine.pause("n")
    mine.run_now("n")
    clock.advance(400 * DAY)
    finish_all(dynbeat)

    assert pruned(dynbeat) == 0

    clock.advance(KEPT + DAY)
    assert pruned(dynbeat) == 1


@pytest.mark.parametrize(("edit", "days_back"), [("none", 7), ("resumed", 2), ("replanned", 2)])
@each_database
def test_no_pruned_fire_time_runs_again_after_the_clock_is_set_back(
    aged, dynbeat, clock, beat, sent, edit, days_back
):
    assert pruned(dynbeat) == 4
    clock.advance(-days_back * DAY)
    if edit == "resumed":
        aged.pause("n")
        aged.resume("n")
    if edit == "replanned":
        # Fire times within the retention still have their runs when they are planned again.
        aged.update("n", trigger=Cron("0 12 * * mon-sun"))

    live_through(dynbeat, clock, beat, days=days_back + 2)

    times = [run.fire_at for run in sent]
    assert times == [NOON + day * DAY for day in range(10)]


def old_runs(dynbeat, number):
    """Record runs without a schedule that ended long ago, in the order of their ids."""
    made_at = START - 400 * DAY
    rows = [
        {
            "id": new_run_id(made_at + place * timedelta(milliseconds=1)),
            "schedule_id": None,
            "owner": "user:42",
            "name": "n",
            "task": "t",
            "fire_at": made_at,
            "status": Status.SUCCEEDED,
            "origin": Origin.SCHEDULE,
            "finished_at": made_at,
        }
        for place in range(number)
    ]
    dynbeat.context.database.run(lambda session: runs.add(session, rows))


def left(dynbeat):
    return dynbeat.context.database.read(lambda session: session.query(Run).count())


def test_beat_prunes_in_small_batches_with_a_pause_after_each(dynbeat, clock, beat, monkeypatch):
    monkeypatch.setattr(pruning, "BATCH_SIZE", 4)
    old_runs(dynbeat, 10)

    assert beat.tick() > timedelta(0)
    assert left(dynbeat) == 10
    # A beat that has just started waits for FIRST_DELAY, and wakes in time.
    clock.advance(FIRST_DELAY - timedelta(microseconds=1))
    assert beat.tick() <= timedelta(microseconds=1)
    assert left(dynbeat) == 10

    clock.advance(timedelta(microseconds=1))
    seen = []
    for _ in range(3):
        pause = beat.tick()
        seen.append((left(dynbeat), pause))
        # A pass before the end of the pause prunes nothing.
        beat.tick()
        assert left(dynbeat) == seen[-1][0]
        clock.advance(BATCH_PAUSE)
    assert [number for number, _ in seen] == [6, 2, 0]
    assert [pause for _, pause in seen[:2]] == [BATCH_PAUSE, BATCH_PAUSE]

    old_runs(dynbeat, 1)
    clock.advance(SCAN_INTERVAL - 2 * BATCH_PAUSE)
    beat.tick()
    assert left(dynbeat) == 1
    clock.advance(BATCH_PAUSE)
    beat.tick()
    assert left(dynbeat) == 0


@each_database
def test_a_clock_that_is_set_forward_during_a_scan_delays_the_next_by_a_day_at_most(
    dynbeat, clock, beat, monkeypatch
):
    monkeypatch.setattr(pruning, "BATCH_SIZE", 4)
    old_runs(dynbeat, 6)
    beat.tick()
    clock.advance(FIRST_DELAY)
    beat.tick()
    assert left(dynbeat) == 2
    clock.advance(30 * DAY)
    beat.tick()
    assert left(dynbeat) == 0

    old_runs(dynbeat, 1)
    clock.advance(DAY)
    beat.tick()
    assert left(dynbeat) == 0


def test_beat_does_not_prune_during_a_backlog(database_url, clock, monkeypatch):
    monkeypatch.setattr(refused, "BATCH_SIZE", 2)
    with application(database_url, clock=clock) as dynbeat:
        mine, beat = dynbeat.schedules.for_owner("user:42"), ManualBeat(dynbeat)
        beat.tick()
        for number in range(5):
            mine.create(f"n{number}", task="t", trigger=DAILY)
        old_runs(dynbeat, 3)
        clock.advance(DAY)

        beat.tick()
        during = left(dynbeat)
        beat.run_until_idle()

    assert during == 3 + 2
    assert len(beat.publisher.sent) == 5


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request, clock):
    """Give an application on a database with row locks."""
    with application(request.getfixturevalue(f"{request.param}_url"), clock=clock) as made:
        made.context.prepare()
        yield made


def one_batch(dynbeat, session, *, after=None):
    """Delete a batch in a transaction of the test; return the number of runs and the position."""
    found = pruning.prunable_runs(
        dynbeat.context.database, now=dynbeat.context.clock.now(), older_than=DAY, after=after
    )
    return runs.delete_finished(session, found.ids), found.last


def test_a_claim_does_not_wait_for_a_prune_transaction(server, clock):
    mine, beat = server.schedules.for_owner("user:42"), ManualBeat(server)
    mine.create("n", task="t", trigger=DAILY)
    live_through(server, clock, beat, days=5)
    clock.advance(DAY)
    done = []

    def work(session):
        done.append(one_batch(server, session)[0])
        # The rows are deleted but not committed: a transaction that waits for them never ends.
        claiming = threading.Thread(target=beat.run_until_idle)
        claiming.start()
        claiming.join(20)
        done.append(claiming.is_alive())

    server.context.database.run(work)

    # Of five runs, one belongs to the last fire time, and one is less than a day old.
    assert done == [4, False]
    assert [run.fire_at for run in beat.publisher.sent] == [NOON + d * DAY for d in range(6)]


@each_database
def test_two_beats_that_prune_at_once_delete_each_run_once(dynbeat, monkeypatch):
    monkeypatch.setattr(pruning, "BATCH_SIZE", 50)
    old_runs(dynbeat, 1_000)
    start, deleted = threading.Barrier(2), []

    def walk():
        start.wait(30)
        deleted.append(pruned(dynbeat))

    walkers = [threading.Thread(target=walk) for _ in range(2)]
    for walker in walkers:
        walker.start()
    for walker in walkers:
        walker.join(60)

    assert sum(deleted) == 1_000
    assert len(deleted) == 2
    assert left(dynbeat) == 0
