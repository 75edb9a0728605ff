"""failing_since: since when the ended runs of a schedule fail."""

from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import event, update

from celery_dynbeat.common.run_states import Status
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.store import runs
from tests.support.applications import MINUTELY, execute
from tests.support.worker_stub import WorkerStub

MINUTE = timedelta(minutes=1)
SILENCE = timedelta(minutes=10)


@pytest.fixture
def worker(dynbeat):
    return WorkerStub(dynbeat)


@pytest.fixture
def begin(mine, clock, beat, sent, worker):
    """Return a function that starts the next run of the schedule and returns it."""
    mine.create("n", task="t", trigger=MINUTELY)

    def begin():
        clock.advance(MINUTE)
        worker.heartbeat()
        beat.run_until_idle()
        assert worker.start(sent[-1])
        return sent[-1]

    return begin


def test_a_schedule_fails_since_the_first_of_its_last_failures(mine, clock, begin, worker):
    assert mine.get("n").failing_since is None
    worker.finish(begin(), Status.FAILED)
    first = clock.now()
    assert mine.get("n").failing_since == first
    worker.finish(begin(), Status.FAILED)

    found = mine.get("n")
    assert (found.failing_since, found.state) == (first, "failing")
    assert [row.name for row in mine.list(state="failing")] == ["n"]

    worker.finish(begin())
    assert mine.get("n").failing_since is None
    assert mine.list(state="failing") == []


def test_an_edit_a_pause_and_a_revoked_run_do_not_end_a_failure(mine, clock, begin, worker):
    worker.finish(begin(), Status.FAILED)
    first = clock.now()
    mine.update("n", task="other")
    mine.pause("n")
    mine.resume("n")
    worker.finish(begin(), Status.REVOKED)

    assert mine.get("n").failing_since == first


def test_a_lost_run_fails_until_its_worker_reports_that_it_succeeded(
    mine, clock, beat, begin, worker
):
    run = begin()
    clock.advance(SILENCE)
    mine.update("n", max_runs=1)
    beat.run_until_idle()
    assert mine.get_run(run.run_id).status == "lost"
    assert mine.get("n").failing_since == clock.now()

    worker.finish(run)

    assert mine.get("n").failing_since is None


def test_the_run_that_ended_last_decides(mine, clock, begin, worker):
    older, newer = begin(), begin()
    worker.finish(newer, Status.FAILED)
    clock.advance(timedelta(seconds=1))
    worker.finish(older)
    assert mine.get("n").failing_since is None

    older, newer = begin(), begin()
    worker.finish(newer)
    clock.advance(timedelta(seconds=1))
    worker.finish(older, Status.FAILED)
    assert mine.get("n").failing_since == clock.now()


def test_an_outcome_that_is_written_late_does_not_hide_a_later_one(mine, clock, begin, worker):
    older, newer = begin(), begin()
    failed_at = clock.now()
    clock.advance(timedelta(seconds=1))
    worker.finish(newer)
    clock.move_to(failed_at)
    worker.finish(older, Status.FAILED)

    assert mine.get("n").failing_since is None


def test_a_manual_run_that_succeeds_ends_a_failure(mine, clock, beat, sent, begin, worker):
    worker.finish(begin(), Status.FAILED)
    clock.advance(timedelta(seconds=1))
    mine.run_now("n")
    beat.run_until_idle()
    assert sent[-1].run_id == mine.runs(origin="manual")[0].id
    worker.start(sent[-1])

    worker.finish(sent[-1])

    assert mine.get("n").failing_since is None


def test_a_run_that_no_broker_accepts_fails_its_schedule(dynbeat, mine, clock, beat):
    mine.create("n", task="t", trigger=MINUTELY)
    run = mine.run_now("n")
    fail = partial(runs.mark_unpublishable, run_id=run.id, now=clock.now(), error="x")

    dynbeat.context.database.run(fail)
    beat.run_until_idle()

    assert mine.get("n").failing_since == clock.now()


def test_a_missed_update_is_corrected_at_the_next_end(dynbeat, mine, clock, begin, worker):
    worker.finish(begin(), Status.FAILED)
    first = clock.now()
    lost = update(Schedule).values(failing_since=None)
    dynbeat.context.database.run(lambda session: session.execute(lost))

    worker.finish(begin(), Status.FAILED)

    assert mine.get("n").failing_since == first


def test_a_run_of_a_healthy_schedule_writes_and_locks_no_schedule(dynbeat, begin, worker):
    run = begin()
    engine, statements = dynbeat.context.database.engine, []

    def note(_connection, _cursor, statement, _values, _context, _many):
        statements.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    worker.finish(run)
    event.remove(engine, "before_cursor_execute", note)

    # "0 = 1": the start of a write transaction on SQLite.
    of_schedules = [
        each for each in statements if "dynbeat_schedule" in each and "0 = 1" not in each
    ]
    assert len(of_schedules) == 1
    assert of_schedules[0].startswith("SELECT")
    assert "FOR UPDATE" not in of_schedules[0]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_history_that_cannot_be_read_affects_no_other_schedule(
    mine, dynbeat, clock, beat, begin, sent, worker, caplog
):
    ended = begin()
    worker.finish(ended, Status.FAILED)
    mine.create("other", task="t", trigger=MINUTELY, max_runs=1)
    assert begin()
    assert worker.start(sent[-2])
    execute(dynbeat, f"UPDATE dynbeat_run SET finished_at = 'infinity' WHERE id = '{ended.run_id}'")

    clock.advance(SILENCE)
    beat.run_until_idle()
    clock.advance(MINUTE)
    beat.run_until_idle()

    assert mine.get("other").failing_since is not None
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.event for record in errors] == ["history_unreadable"]
