"""failing_since: since when the ended runs of a schedule fail."""

from datetime import timedelta

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.signals import schedule_recovered
from celery_dynbeat.store.schedules import failing
from celery_dynbeat.worker import outcome_recorder
from celery_dynbeat.worker.outcomes import Outcome, apply_outcome
from tests.support.applications import MINUTELY
from tests.support.lock_waits import failing_waits
from tests.support.waiting import wait_until
from tests.support.worker_stub import WorkerStub

MINUTE = timedelta(minutes=1)
SILENCE = timedelta(minutes=10)


@pytest.fixture
def worker(dynbeat):
    return WorkerStub(dynbeat)


@pytest.fixture
def succeed(beat, worker):
    """Return a function that ends a run successfully. Beat then corrects the schedule."""

    def succeed(run):
        worker.finish(run)
        beat.run_until_idle()

    return succeed


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


def test_a_schedule_fails_since_the_first_of_its_last_failures(mine, clock, begin, worker, succeed):
    assert mine.get("n").failing_since is None
    worker.finish(begin(), Status.FAILED)
    first = clock.now()
    assert mine.get("n").failing_since == first
    worker.finish(begin(), Status.FAILED)

    found = mine.get("n")
    assert (found.failing_since, found.state) == (first, "failing")
    assert [row.name for row in mine.list(state="failing")] == ["n"]

    succeed(begin())
    assert mine.get("n").failing_since is None
    assert mine.list(state="failing") == []


def test_a_lost_run_fails_until_its_worker_reports_that_it_succeeded(
    mine, clock, beat, begin, succeed
):
    run = begin()
    clock.advance(SILENCE)
    mine.update("n", max_runs=1)
    beat.run_until_idle()
    assert mine.get_run(run.run_id).status == "lost"
    assert mine.get("n").failing_since == clock.now()

    succeed(run)

    assert mine.get("n").failing_since is None


def test_the_run_that_ended_last_decides(mine, clock, begin, worker, succeed):
    older, newer = begin(), begin()
    worker.finish(newer, Status.FAILED)
    clock.advance(timedelta(seconds=1))
    succeed(older)
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


def test_a_success_before_the_next_failure_is_reported(mine, clock, beat, begin, worker):
    recovered = []
    schedule_recovered.connect(
        lambda event, **_: recovered.append(event), weak=False, dispatch_uid=__name__
    )
    worker.finish(begin(), Status.FAILED)
    first = clock.now()
    older, newer = begin(), begin()
    worker.finish(older)
    clock.advance(timedelta(seconds=1))
    worker.finish(newer, Status.FAILED)
    beat.run_until_idle()
    schedule_recovered.disconnect(dispatch_uid=__name__)

    assert [event.failing_since for event in recovered] == [first]
    assert mine.get("n").failing_since == clock.now()


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_the_end_of_a_run_of_a_failing_schedule_does_not_wait_for_its_row(
    dynbeat, mine, clock, beat, begin, worker
):
    worker.finish(begin(), Status.FAILED)
    run, engine = begin(), dynbeat.context.database.engine
    holding = create_engine(engine.url, isolation_level="READ COMMITTED")

    with failing_waits(engine) as waits, Session(holding) as holder:
        holder.scalars(select(Schedule).with_for_update()).all()
        worker.finish(run)
        assert mine.get_run(run.run_id).status == "succeeded"
        beat.run_until_idle()
        assert mine.get("n").failing_since is not None
        holder.rollback()
        assert waits == []
    holding.dispose()

    clock.advance(SILENCE)
    worker.heartbeat()
    beat.run_until_idle()
    assert mine.get("n").failing_since is None


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_the_end_of_a_run_locks_no_schedule(dynbeat, begin, worker):
    worker.finish(begin(), Status.FAILED)
    outcome = Outcome(
        run_id=begin().run_id,
        attempt=1,
        worker=worker.name,
        status=Status.SUCCEEDED,
        at=dynbeat.context.clock.now(),
    )

    def end_and_lock(session):
        assert apply_outcome(session, outcome)
        # Another transaction can lock the schedule while that of the end is open.
        lock = select(Schedule.id).with_for_update(nowait=True)
        return dynbeat.context.database.run(lambda other: other.scalars(lock).all())

    assert len(dynbeat.context.database.run(end_and_lock)) == 1


def test_a_success_that_is_written_during_the_correction_is_not_lost(
    mine, clock, beat, begin, worker, monkeypatch
):
    run = begin()
    mine.update("n", max_runs=1)
    refresh = failing._refresh

    def refresh_and_report(database, schedule_ids):
        refreshed = refresh(database, schedule_ids)
        if schedule_ids:
            monkeypatch.undo()
            worker.finish(run)
        return refreshed

    monkeypatch.setattr(failing, "_refresh", refresh_and_report)
    clock.advance(SILENCE)
    beat.run_until_idle()
    assert failing._refresh is refresh
    beat.run_until_idle()

    assert mine.get_run(run.run_id).status == "succeeded"
    assert mine.get("n").failing_since is None


def test_a_failure_whose_correction_failed_is_corrected_with_the_next_try(
    mine, begin, worker, monkeypatch
):
    run = begin()
    unreachable = OperationalError("SELECT", {}, Exception("connection lost"))
    calls = []

    def note_failure(*args, **kwargs):
        calls.append(1)
        if len(calls) == 1:
            raise unreachable
        failing.note_failure(*args, **kwargs)

    monkeypatch.setattr(outcome_recorder, "note_failure", note_failure)
    worker.finish(run, Status.FAILED)

    wait_until(lambda: mine.get("n").failing_since is not None, within=20)
