"""Window, expiry, lost runs, failures in a row, and the records of missed fire times."""

from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from celery_dynbeat import Every
from celery_dynbeat.beat.rescue import CANVAS_LOST
from celery_dynbeat.common.states import Status
from celery_dynbeat.store.runs.unfinished import MAX_ATTEMPTS
from tests.support.applications import MINUTELY, execute
from tests.support.suites import each_database
from tests.support.worker_stub import WorkerStub

MINUTE = timedelta(minutes=1)
SILENCE = timedelta(seconds=61)


@pytest.fixture
def worker(dynbeat):
    return WorkerStub(dynbeat)


@pytest.fixture
def run(mine, beat, sent, worker):
    """Give a running run of a schedule that fires once an hour."""
    mine.create("n", task="t", trigger=Every(3600))
    mine.run_now("n")
    beat.run_until_idle()
    assert worker.start(sent[0])
    return sent[0]


@pytest.fixture
def of_a_canvas(mine, worker, run):
    """Give a run whose task was replaced by a canvas, with a ``max_run_time`` of 20 minutes."""
    mine.update("n", max_run_time=20 * 60, on_lost="rerun")
    worker.finish(run, Status.RETRYING)
    return run


@pytest.mark.usefixtures("of_a_canvas")
def test_a_run_whose_canvas_does_not_end_within_max_run_time_is_lost_and_not_sent_again(
    mine, clock, beat, sent
):
    clock.advance(19 * MINUTE)
    beat.run_until_idle()
    assert [found.status for found in mine.runs()] == ["retrying"]

    clock.advance(2 * MINUTE)
    beat.run_until_idle()

    [lost] = mine.runs()
    assert (lost.status, lost.error) == ("lost", CANVAS_LOST)
    assert lost.finished_at == clock.now()
    assert len(sent) == 1
    clock.advance(MINUTE)
    beat.run_until_idle()
    assert mine.get("n").failing_since == lost.finished_at


@pytest.mark.usefixtures("run")
def test_a_retry_and_a_replacement_by_one_task_are_sent_again_and_not_lost(
    mine, clock, beat, sent, worker, run
):
    mine.update("n", trigger=Every(days=30), max_run_time=60)
    worker.finish(run, Status.RETRYING, retry_at=clock.now())
    clock.advance(30 * MINUTE)
    beat.run_until_idle()
    assert [found.status for found in mine.runs()] == ["retrying"]

    clock.advance(31 * MINUTE)
    beat.run_until_idle()

    assert sent[-1].run_id == run.run_id
    assert len([each for each in sent if each.run_id == run.run_id]) == 2


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED])
def test_a_late_end_of_a_lost_canvas_replaces_lost(mine, clock, beat, worker, of_a_canvas, status):
    clock.advance(21 * MINUTE)
    beat.run_until_idle()
    assert [found.status for found in mine.runs()] == ["lost"]

    # Its last task starts and ends; or another task of it fails.
    if status == Status.SUCCEEDED:
        assert worker.start(of_a_canvas._replace(attempt=1), replaces=True)
        assert [found.status for found in mine.runs()] == ["running"]
    worker.finish(of_a_canvas, status)

    assert [found.status for found in mine.runs()] == [status]


@pytest.mark.usefixtures("run")
def test_a_worker_without_heartbeats_during_a_database_outage_is_not_dead(
    dynbeat, mine, clock, beat, monkeypatch
):
    def fail(_work):
        raise OperationalError("SELECT", {}, ConnectionError("unreachable"))

    with monkeypatch.context() as patched:
        patched.setattr(dynbeat.context.database, "read", fail)
        with pytest.raises(OperationalError):
            beat.tick()
    clock.advance(SILENCE)
    beat.run_until_idle()
    assert [found.status for found in mine.runs()] == ["running"]

    clock.advance(SILENCE)
    beat.run_until_idle()

    assert [found.status for found in mine.runs()] == ["lost"]


@pytest.mark.usefixtures("run")
def test_a_run_is_lost_at_once_when_another_node_starts_under_its_workers_name(
    dynbeat, mine, clock, beat
):
    clock.advance(timedelta(seconds=20))
    execute(dynbeat, "DELETE FROM dynbeat_node")
    WorkerStub(dynbeat)
    beat.run_until_idle()

    assert [found.status for found in mine.runs()] == ["lost"]


def test_a_lost_run_is_sent_again_with_on_lost_rerun(dynbeat, mine, clock, beat, sent, run):
    mine.update("n", on_lost="rerun")
    clock.advance(SILENCE)
    beat.run_until_idle()

    assert [again.run_id for again in sent] == [run.run_id] * 2
    assert WorkerStub(dynbeat, "w2").start(sent[1])
    [found] = mine.runs()
    assert (found.status, found.attempt, found.worker) == ("running", 2, "w2")


def test_a_slow_worker_records_how_its_lost_run_ended(mine, clock, beat, worker, run):
    clock.advance(SILENCE)
    beat.run_until_idle()

    worker.finish(run)

    assert [found.status for found in mine.runs()] == ["succeeded"]


def test_a_slow_worker_does_not_change_a_later_attempt(
    dynbeat, mine, clock, beat, sent, worker, run
):
    mine.update("n", on_lost="rerun")
    clock.advance(SILENCE)
    beat.run_until_idle()
    WorkerStub(dynbeat, "w2").start(sent[1])

    worker.finish(run, Status.FAILED)

    assert [found.status for found in mine.runs()] == ["running"]


def test_failures_in_a_row_pause_a_schedule_with_the_reason(mine, clock, beat, sent, worker):
    mine.create("n", task="t", trigger=MINUTELY, pause_after_failures=2)
    for status in (Status.FAILED, Status.SUCCEEDED, Status.FAILED, Status.FAILED):
        assert mine.get("n").enabled
        clock.advance(MINUTE)
        beat.run_until_idle()
        worker.start(sent[-1])
        worker.finish(sent[-1], status)
    assert mine.get("n").enabled
    clock.advance(MINUTE)
    beat.run_until_idle()

    found = mine.get("n")
    assert (found.enabled, found.next_run_at, len(sent)) == (False, None, 4)
    assert found.paused_reason == "2 failures in a row; the last: ValueError: no"


def test_failures_before_a_resume_do_not_count_after_it(mine, clock, beat, sent, worker):
    mine.create("n", task="t", trigger=MINUTELY, pause_after_failures=2)

    def fail():
        clock.advance(MINUTE)
        beat.run_until_idle()
        worker.heartbeat()
        if mine.get("n").enabled:
            worker.start(sent[-1])
            worker.finish(sent[-1], Status.FAILED)
        return mine.get("n").enabled

    assert [fail(), fail(), fail()] == [True, True, False]
    clock.advance(timedelta(seconds=1))
    mine.resume("n")
    assert [fail(), fail(), fail()] == [True, True, False]
    assert len(sent) == 4


def test_a_run_that_kills_its_workers_is_not_sent_without_end(dynbeat, mine, clock, beat, sent):
    mine.create("n", task="t", trigger=Every(3600), on_lost="rerun")
    mine.run_now("n")
    beat.run_until_idle()
    for number in range(MAX_ATTEMPTS):
        assert len(sent) == number + 1
        WorkerStub(dynbeat, f"victim{number}").start(sent[-1])
        clock.advance(SILENCE)
        beat.run_until_idle()

    (ended,) = mine.runs()
    assert (ended.status, ended.attempt, len(sent)) == ("lost", MAX_ATTEMPTS, MAX_ATTEMPTS)


def test_a_pause_just_before_a_rerun_prevents_the_rerun(dynbeat, mine, clock, beat, sent, worker):
    mine.create("n", task="t", trigger=MINUTELY, on_lost="rerun")
    clock.advance(MINUTE)
    beat.run_until_idle()
    worker.start(sent[0])
    execute(
        dynbeat,
        "UPDATE dynbeat_run SET status = 'pending', overdue_at = '2026-11-21 09:00:00'",
    )
    mine.pause("n")
    execute(
        dynbeat,
        "UPDATE dynbeat_run SET status = 'pending', finished_at = NULL,"
        " overdue_at = '2026-11-21 09:00:00'",
    )

    beat.run_until_idle()

    assert [found.status for found in mine.runs()] == ["revoked"]
    assert len(sent) == 1


@pytest.mark.parametrize("table", ["dynbeat_node", "dynbeat_schedule"])
@pytest.mark.usefixtures("run")
@each_database
def test_a_locked_row_makes_no_run_lost(dynbeat, mine, clock, beat, table):
    if dynbeat.context.database.capabilities.embedded:
        pytest.skip("SQLite has no row locks")
    clock.advance(timedelta(seconds=30))
    with dynbeat.context.database.engine.connect() as other, other.begin():
        other.execute(text(f"SELECT * FROM {table} FOR UPDATE")).all()

        beat.run_until_idle()

    assert [found.status for found in mine.runs()] == ["running"]


def test_lost_runs_count_as_failures(mine, clock, beat, sent, worker):
    mine.create("n", task="t", trigger=MINUTELY, pause_after_failures=1)
    clock.advance(MINUTE)
    beat.run_until_idle()
    worker.start(sent[0])

    clock.advance(SILENCE)
    beat.run_until_idle()
    clock.advance(MINUTE)
    beat.run_until_idle()

    assert not mine.get("n").enabled
