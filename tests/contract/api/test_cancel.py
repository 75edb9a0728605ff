"""cancel_run() and cancel_runs(): runs that have not started are revoked."""

import threading
from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from celery_dynbeat import ConflictError, InvalidArgumentError
from celery_dynbeat.api import controlling
from celery_dynbeat.common.states import Status
from celery_dynbeat.store import scans
from celery_dynbeat.store.runs import attempts
from tests.support.applications import MINUTELY, START
from tests.support.ended_runs import end, start
from tests.support.suites import each_database
from tests.support.worker_stub import WorkerStub

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
CANCELLED = "the run was cancelled"


@pytest.fixture
def theirs(dynbeat):
    return dynbeat.schedules.for_owner("user:41")


@pytest.fixture
def run(mine, clock, beat, sent):
    """Return the only run of schedule n: sent, and not started."""
    mine.create("n", task="t", trigger=MINUTELY, max_runs=1)
    clock.advance(MINUTE)
    beat.run_until_idle()
    assert len(sent) == 1
    return mine.runs("n")[0]


@pytest.fixture
def crowd(mine, theirs, clock, beat):
    """Send four runs of two schedules of one owner and of one schedule of another."""
    mine.create("a", task="t", trigger=MINUTELY)
    mine.create("b", task="u", trigger=MINUTELY)
    theirs.create("a", task="t", trigger=MINUTELY)
    for _ in range(4):
        clock.advance(MINUTE)
        beat.run_until_idle()
    clock.advance(SECOND)


def revoked(calls, **how):
    return [run for run in calls.runs(limit=100, **how) if run.status == "revoked"]


def first_attempt(run):
    return attempts.AttemptStart(run_id=run.id, expected_attempt=0, retries=0, worker="w", pid=1)


@each_database
def test_a_cancelled_run_is_revoked_and_the_guard_refuses_its_message(dynbeat, mine, run, sent):
    cancelled = mine.cancel_run(run.id)

    assert (cancelled.status, cancelled.error) == ("revoked", CANCELLED)
    assert cancelled.finished_at == dynbeat.context.clock.now()
    assert mine.get_run(run.id) == cancelled
    assert not WorkerStub(dynbeat).start(sent[0])
    assert mine.get_run(run.id) == cancelled


def test_a_run_that_waits_for_a_retry_is_cancelled(dynbeat, mine, clock, beat, sent, run):
    worker = WorkerStub(dynbeat)
    assert worker.start(sent[0])
    worker.finish(sent[0], Status.RETRYING, retry_at=clock.now() + MINUTE)
    assert mine.get_run(run.id).status == "retrying"

    assert mine.cancel_run(run.id).status == "revoked"

    clock.advance(timedelta(hours=2))
    beat.run_until_idle()
    assert len(sent) == 1


def test_a_run_that_is_buffered_behind_a_cancelled_one_is_sent_at_once(mine, clock, beat, sent):
    mine.create("n", task="t", trigger=MINUTELY, overlap="buffer_one")
    for _ in range(2):
        clock.advance(MINUTE)
        beat.run_until_idle()
    assert len(sent) == 1

    mine.cancel_run(sent[0].run_id)
    beat.run_until_idle()

    assert [run.fire_at for run in sent] == [START + MINUTE, START + 2 * MINUTE]


def test_a_running_run_is_refused_with_the_call_that_ends_it(dynbeat, mine, run):
    start(dynbeat, run.id)

    with pytest.raises(ConflictError, match=r"revoke\(.*terminate=True\)") as caught:
        mine.cancel_run(run.id)

    assert caught.value.field == "run_id"
    assert run.id in str(caught.value)
    assert mine.get_run(run.id).status == "running"


@pytest.mark.parametrize("status", ["succeeded", "failed", "revoked", "lost", "expired"])
def test_a_run_that_has_ended_is_refused(dynbeat, mine, run, status):
    start(dynbeat, run.id)
    end(dynbeat, run.id, status)
    before = mine.get_run(run.id)

    with pytest.raises(ConflictError, match=f"has ended as {status}"):
        mine.cancel_run(run.id)

    assert mine.get_run(run.id) == before


@pytest.mark.usefixtures("crowd")
@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, {("a", n) for n in (1, 2, 3, 4)} | {("b", n) for n in (1, 2, 3, 4)}),
        ({"name": "a"}, {("a", n) for n in (1, 2, 3, 4)}),
        ({"task": "u"}, {("b", n) for n in (1, 2, 3, 4)}),
        ({"since": START + 3 * MINUTE}, {(name, n) for name in "ab" for n in (3, 4)}),
        ({"until": START + 2 * MINUTE, "name": "b"}, {("b", 1)}),
        ({"status": "sent", "task": "t"}, {("a", n) for n in (1, 2, 3, 4)}),
        ({"status": ("pending", "retrying")}, set()),
        ({"origin": "manual"}, set()),
        ({"name": "c"}, set()),
    ],
)
@pytest.mark.parametrize("call", ["own", "all"])
def test_the_matching_runs_of_an_owner_are_cancelled(
    dynbeat, mine, theirs, call, filters, expected
):
    cancel = mine.cancel_runs
    if call == "all":
        filters = {**filters, "owner": mine.owner}
        cancel = dynbeat.schedules.cancel_runs

    assert cancel(**filters) == len(expected)

    found = {(run.name, (run.fire_at - START) // MINUTE) for run in revoked(mine)}
    assert found == expected
    assert revoked(theirs) == []
    assert {run.error for run in revoked(mine)} <= {CANCELLED}


@pytest.mark.usefixtures("crowd")
@pytest.mark.parametrize("limit", [1, 3, 5, 12, 13])
def test_a_call_cancels_at_most_its_limit_in_batches(dynbeat, monkeypatch, limit):
    monkeypatch.setattr(controlling, "BATCH_SIZE", 2)
    monkeypatch.setattr(scans, "MAX_SCANNED", 3)

    assert dynbeat.schedules.cancel_runs(limit=limit) == min(limit, 12)
    assert len(revoked(dynbeat.schedules)) == min(limit, 12)
    assert dynbeat.schedules.cancel_runs() == 12 - min(limit, 12)


def test_a_filter_on_running_runs_is_refused_with_the_call_that_ends_them(mine):
    with pytest.raises(InvalidArgumentError, match=r"terminate=True"):
        mine.cancel_runs(status=("sent", "running"))


@pytest.mark.parametrize("many", [False, True])
@each_database
def test_a_cancel_waits_for_a_starting_worker_and_leaves_the_run_to_it(dynbeat, mine, run, many):
    results = []

    def cancel():
        try:
            results.append(mine.cancel_runs() if many else mine.cancel_run(run.id))
        except ConflictError as error:
            results.append(error.field)

    other = threading.Thread(target=cancel)
    with Session(dynbeat.context.database.engine) as worker:
        assert attempts.start(worker, first_attempt(run), now=dynbeat.context.clock.now())
        other.start()
        other.join(0.5)
        assert other.is_alive()
        worker.commit()
    other.join(30)

    assert results == [0 if many else "run_id"]
    assert mine.get_run(run.id).status == "running"
    assert mine.changes(action="cancel") == []


@pytest.mark.parametrize("many", [False, True])
@each_database
def test_a_worker_waits_for_an_open_cancel_and_does_not_start_the_run(dynbeat, mine, run, many):
    started = []
    other = threading.Thread(target=lambda: started.append(start(dynbeat, run.id)))

    with Session(dynbeat.context.database.engine) as session:
        if many:
            assert mine.bound(session=session).cancel_runs() == 1
        else:
            mine.bound(session=session).cancel_run(run.id)
        other.start()
        other.join(0.5)
        assert other.is_alive()
        session.commit()
    other.join(30)

    assert started == [False]
    assert mine.get_run(run.id).status == "revoked"


@pytest.mark.usefixtures("crowd")
@each_database
def test_a_cancel_does_not_wait_for_runs_that_it_does_not_cancel(dynbeat, mine, theirs):
    if dynbeat.context.database.capabilities.embedded:
        pytest.skip("SQLite has one writer")
    run = theirs.runs()[0]

    with Session(dynbeat.context.database.engine) as worker:
        assert attempts.start(worker, first_attempt(run), now=dynbeat.context.clock.now())
        assert mine.cancel_runs() == 8
        worker.rollback()


@pytest.mark.usefixtures("crowd")
@each_database
def test_two_calls_at_the_same_time_cancel_each_run_once(dynbeat, monkeypatch):
    monkeypatch.setattr(controlling, "BATCH_SIZE", 2)
    together, counts = threading.Barrier(2), []

    def cancel():
        together.wait(10)
        counts.append(dynbeat.schedules.cancel_runs())

    threads = [threading.Thread(target=cancel) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert sum(counts) == 12
    ids = [
        run_id
        for change in dynbeat.schedules.changes(action="cancel", limit=100)
        for run_id in change.after["run_ids"]
    ]
    assert len(ids) == len(set(ids)) == 12
