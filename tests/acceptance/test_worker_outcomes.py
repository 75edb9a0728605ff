"""The outcome of a task is recorded, on each pool of the worker."""

import pytest

from tests.support.sites import POOLS
from tests.support.waiting import wait_until


@pytest.fixture(scope="module", params=POOLS)
def pool(request):
    """Return each pool in turn, for ``running``."""
    return request.param


#: What the main process of the worker decides, or the wrapper of a task alike on each pool.
prefork = pytest.mark.parametrize("pool", ["prefork"], indirect=True, scope="module")


def test_a_task_that_returns_has_succeeded(running):
    running.create_once("record", args=[1], kwargs={"b": 2})

    run = running.wait_for_run("record", "succeeded")

    assert (run.attempt, run.error, run.traceback) == (1, None, None)


def test_a_task_that_raises_has_failed_with_a_bounded_error_and_traceback(running):
    running.create_once("fail", kwargs={"length": 50_000})

    run = running.wait_for_run("fail", "failed")

    assert run.error.startswith("ValueError: xxx")
    assert len(run.error) <= 1_000
    assert len(run.traceback) <= 8_000


def test_a_retry_is_recorded_and_starts_a_second_attempt(running):
    running.create_once("retry", kwargs={"countdown": 2})

    between = running.wait_for_run("retry", "retrying")
    after = running.wait_for_run("retry", "succeeded")

    assert (between.attempt, between.finished_at) == (1, None)
    assert "not yet" in between.error
    assert (after.attempt, after.error) == (2, None)
    assert [start["retries"] for start in running.event_log.starts(after.id)] == [0, 1]


def test_a_task_knows_its_current_run_and_its_subtask_has_none(running):
    running.create_once("current")
    first = running.wait_for_run("current", "succeeded")
    running.mine.run_now("current")
    wait_until(lambda: running.runs("current")[0].origin == "manual", within=30)
    wait_until(lambda: running.runs("current")[0].status == "succeeded", within=30)
    wait_until(lambda: len(running.event_log.read("current")) == 6, within=30)

    seen = [each["run"] for each in running.event_log.read("current")]
    of_runs = [run for run in seen if run is not None]
    assert len(of_runs) == 4
    assert [(run["attempt"], run["origin"]) for run in of_runs] == [
        *((1, "schedule"), (2, "schedule")),
        *((1, "manual"), (2, "manual")),
    ]
    fire_time = first.fire_at.isoformat()
    assert [run["last_success_at"] for run in of_runs] == [None, None, fire_time, fire_time]
    assert of_runs[0]["fire_at"] == fire_time
    assert of_runs[0]["run_id"] == first.id


@prefork
def test_ignore_ends_the_run(running):
    running.create_once("ignore")

    assert running.wait_for_run("ignore", "succeeded").error == "the task raised Ignore"


@prefork
def test_a_task_that_skips_its_run_ends_it_as_skipped(running):
    running.create_once("skip")

    run = running.wait_for_run("skip", "skipped")

    assert (run.attempt, run.error, run.traceback) == (1, "the account is closed", None)
    assert run.duration is not None
    assert run.note == "0 of 2"


def test_a_task_that_postpones_its_run_starts_again_later(running):
    running.create_once("postpone", kwargs={"seconds": 2})

    between = running.wait_for_run("postpone", "pending", where=lambda run: run.is_waiting)
    after = running.wait_for_run("postpone", "succeeded")

    assert (between.waited_for, between.attempt, between.finished_at) == ("postponed", 1, None)
    assert (after.attempt, after.retries, after.earlier_errors) == (2, 0, ())
    assert after.started_at >= between.retry_at
    assert [start["retries"] for start in running.event_log.starts(after.id)] == [0, 0]


@prefork
def test_a_rejected_message_has_failed(running):
    running.create_once("rejected", task="probe.reject", kwargs={"requeue": False})

    assert "not here" in running.wait_for_run("rejected", "failed").error


def test_a_rejected_and_requeued_message_starts_again(running):
    running.create_once("requeued", task="probe.reject", kwargs={"requeue": True})

    run = running.wait_for_run("requeued", "succeeded")

    assert run.attempt == 2
    assert len(running.event_log.starts(run.id)) == 2


@prefork
def test_a_run_that_expires_before_its_start_has_expired(running):
    running.create_once("expired", task="probe.record", expires_after=0.5, options={"countdown": 1})

    run = running.wait_for_run("expired", "expired")

    assert run.started_at is None
    assert not running.event_log.starts(run.id)


def test_a_run_that_remote_control_revokes_before_its_start_is_revoked(running):
    running.create_once("revoked", task="probe.record", options={"countdown": 1.5})
    run = running.wait_for_run("revoked", "sent")

    running.app.control.revoke(run.id)

    assert running.wait_for_run("revoked", "revoked").started_at is None
    assert not running.event_log.starts(run.id)


@prefork
def test_an_unregistered_task_has_failed(running):
    running.create_once("unknown", task="probe.nobody_knows")

    assert "probe.nobody_knows" in running.wait_for_run("unknown", "failed").error


@prefork
def test_a_second_message_of_the_same_run_is_ignored(running):
    running.create_once("twice", task="probe.record")
    run = running.wait_for_run("twice", "succeeded")
    (start,) = running.event_log.starts(run.id)

    running.app.send_task("probe.record", task_id=run.id, headers=start["headers"])
    witness = running.app.send_task("probe.record")

    wait_until(lambda: running.event_log.starts(witness.id), within=10)
    assert len(running.event_log.starts(run.id)) == 1
    assert running.wait_for_run("twice", "succeeded").attempt == 1


@prefork
def test_a_task_that_no_schedule_sent_is_not_recorded(running):
    before = running.count_runs()

    plain = running.app.send_task("probe.record")

    wait_until(lambda: running.event_log.starts(plain.id), within=10)
    assert running.count_runs() == before
