"""A claim locks, plans and records due rows: catch_up, start_at and end_at, max_runs, batches."""

import threading
from datetime import timedelta

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
