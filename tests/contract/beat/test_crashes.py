"""No run is lost or recorded twice: sweeps, crashes of beat, several beats at once."""

import threading
from collections import Counter
from datetime import timedelta

import psycopg
import pytest

from celery_dynbeat.common.states import Status
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, START, application
from tests.support.servers import PostgreSQLServer
from tests.support.suites import each_database
from tests.support.worker_stub import WorkerStub

MINUTE = timedelta(minutes=1)


class CrashError(BaseException):
    """Beat crashes at this point."""


def crash_at(wanted):
    def failpoint(point):
        if point == wanted:
            raise CrashError(point)

    return failpoint


def only(mine):
    (run,) = mine.runs()
    return run


def restart_by_a_crash(server, dynbeat):
    server.kill()
    server.start()
    # The pool has connections of the killed server.
    dynbeat.context.database.dispose()


@pytest.mark.parametrize("point", ["recorded", "committed", "published"])
@each_database
def test_the_next_beat_continues_after_a_crash(dynbeat, mine, clock, sent, beat, point):
    mine.create("n", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    crashing = ManualBeat(dynbeat, failpoint=crash_at(point))
    with pytest.raises(CrashError):
        crashing.tick()

    beat.run_until_idle()
    assert len(sent) == (1 if point == "recorded" else 0)
    clock.advance(timedelta(seconds=30))
    beat.run_until_idle()

    run = only(mine)
    assert [message.run_id for message in sent] == [run.id]
    assert {message.run_id for message in crashing.publisher.sent} <= {run.id}
    assert (run.status, run.fire_at) == ("sent", START + MINUTE)


def test_a_claim_that_a_crash_of_the_database_undid_is_repeated_and_its_message_refused(
    own_server, clock
):
    server = own_server(PostgreSQLServer)
    address = server.url.replace("+psycopg", "")
    with psycopg.connect(address, autocommit=True) as connection:
        # Without a later transaction, nothing writes the claim to the disk before the crash.
        connection.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        connection.execute("SELECT pg_reload_conf()")
    with application(server.url, clock=clock) as dynbeat:
        mine = dynbeat.schedules.for_owner("mine")
        before = mine.create("n", task="t", trigger=MINUTELY)
        clock.advance(MINUTE)
        crashing = ManualBeat(dynbeat, any_database=True, failpoint=crash_at("published"))
        with pytest.raises(CrashError):
            crashing.tick()
        (undone,) = crashing.publisher.sent
        restart_by_a_crash(server, dynbeat)

        assert (mine.get("n"), mine.runs().items) == (before, ())
        beat = ManualBeat(dynbeat, any_database=True)
        beat.run_until_idle()

        (repeated,) = beat.publisher.sent
        assert repeated.fire_at == undone.fire_at
        worker = WorkerStub(dynbeat)
        assert [worker.start(run) for run in (undone, repeated, repeated)] == [False, True, False]


def test_the_start_of_a_run_makes_its_claim_survive_a_crash_of_the_database(own_server, clock):
    server = own_server(PostgreSQLServer)
    with application(server.url, clock=clock) as dynbeat:
        mine = dynbeat.schedules.for_owner("mine")
        mine.create("n", task="t", trigger=MINUTELY)
        worker = WorkerStub(dynbeat)
        clock.advance(MINUTE)
        crashing = ManualBeat(dynbeat, any_database=True, failpoint=crash_at("published"))
        with pytest.raises(CrashError):
            crashing.tick()
        (run,) = crashing.publisher.sent
        assert worker.start(run)
        restart_by_a_crash(server, dynbeat)

        beat = ManualBeat(dynbeat, any_database=True)
        beat.run_until_idle()
        assert (only(mine).id, only(mine).status) == (run.run_id, "running")
        assert beat.publisher.sent == []


@each_database
def test_the_next_beat_sweeps_the_runs_after_a_crash_in_a_sweep(dynbeat, mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY)
    run = mine.run_now("n")
    with pytest.raises(CrashError):
        ManualBeat(dynbeat, failpoint=crash_at("swept")).tick()

    beat.run_until_idle()
    assert sent == []
    clock.advance(timedelta(seconds=30))
    beat.run_until_idle()

    assert [message.run_id for message in sent] == [run.id]


def test_without_a_broker_nothing_is_claimed(mine, clock, beat, sent):
    before = mine.create("n", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    beat.publisher.fail_with(ConnectionError("unreachable"))

    with pytest.raises(ConnectionError):
        beat.tick()

    assert (mine.get("n"), mine.runs()) == (before, [])
    beat.publisher.fail_with(None)
    beat.run_until_idle()
    assert len(sent) == 1


def test_a_run_that_was_never_started_is_sent_again_after_resend_after(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    beat.run_until_idle()
    first = only(mine)
    mine.update("n", end_at=START + 2 * MINUTE)

    clock.move_to(first.sent_at + timedelta(hours=1))
    beat.run_until_idle()

    ids = [message.run_id for message in sent]
    assert ids.count(first.id) == 2
    again = next(run for run in mine.runs() if run.id == first.id)
    assert (again.status, again.sent_at) == ("sent", first.sent_at)


def test_each_copy_of_a_queued_run_doubles_the_time_to_the_next_copy(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY, max_runs=1)
    clock.advance(MINUTE)
    hours = []

    for hour in range(10):
        beat.run_until_idle()
        hours += [hour] * (len(sent) - len(hours))
        clock.advance(timedelta(hours=1))

    assert hours == [0, 1, 2, 4, 8]


def test_a_retry_that_the_broker_lost_is_sent_again_with_its_count(
    dynbeat, mine, clock, beat, sent
):
    mine.create("n", task="t", trigger=MINUTELY, max_runs=1)
    clock.advance(MINUTE)
    beat.run_until_idle()
    worker = WorkerStub(dynbeat)
    worker.start(sent[0])
    worker.finish(sent[0], Status.RETRYING, retry_at=clock.now() + MINUTE)

    clock.advance(timedelta(hours=1))
    beat.run_until_idle()
    assert (only(mine).status, len(sent)) == ("retrying", 1)
    clock.advance(2 * MINUTE)
    beat.run_until_idle()

    assert [(run.attempt, run.retries) for run in sent] == [(0, 0), (1, 1)]
    worker.heartbeat()
    assert worker.start(sent[1])
    assert not worker.start(sent[0])
    assert (only(mine).status, only(mine).attempt) == ("running", 2)


@each_database
def test_a_run_that_no_worker_started_in_time_is_recorded_as_expired(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY, expires_after=10, max_runs=1)
    clock.advance(MINUTE)
    beat.run_until_idle()
    assert sent[0].expires_at == clock.now() + timedelta(seconds=10)

    clock.advance(timedelta(seconds=40))
    beat.run_until_idle()

    assert (only(mine).status, len(sent)) == ("expired", 1)


def test_a_run_whose_schedule_was_deleted_in_sql_is_revoked(dynbeat, mine, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.run_now("n")
    with dynbeat.context.database.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM dynbeat_schedule")

    beat.run_until_idle()

    assert (only(mine).status, sent) == ("revoked", [])


@each_database
def test_several_beats_send_ten_thousand_schedules_once_each(database_url, dynbeat, clock):
    count = 10_000
    dynbeat.schedules.create_many(
        {"owner": f"u{number}", "name": "n", "task": "t", "trigger": MINUTELY}
        for number in range(count)
    )
    clock.advance(MINUTE)
    sent, failures = [], []

    def run(beat):
        try:
            while beat.tick() <= timedelta(milliseconds=50):
                pass
        except Exception as error:  # noqa: BLE001 - shown by the assertion
            failures.append(error)
        sent.extend(beat.publisher.sent)

    with (
        application(database_url, clock=clock) as one,
        application(database_url, clock=clock) as two,
    ):
        threads = [threading.Thread(target=run, args=(ManualBeat(made),)) for made in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    assert failures == []
    assert len({message.run_id for message in sent}) == len(sent) == count
    fires = Counter((message.schedule_id, message.fire_at) for message in sent)
    assert set(fires.values()) == {1}
    with dynbeat.context.database.engine.connect() as connection:
        states = "SELECT status, COUNT(*) FROM dynbeat_run GROUP BY status"
        assert connection.exec_driver_sql(states).all() == [("sent", count)]
