"""How the end of a task comes into the history, on every pool of the worker."""

from datetime import timedelta

import pytest

from celery_dynbeat import Once
from tests.support.databases import new_postgresql_database
from tests.support.sites import POOLS, site
from tests.support.waiting import wait_until


@pytest.fixture(scope="module", params=POOLS)
def pool(request):
    return request.param


@pytest.fixture(scope="module")
def running(pool, postgresql_server, redis_server, tmp_path_factory):
    """Give an installation whose beat and worker serve all tests of this module."""
    # A database of Redis beside the one that other tests empty.
    broker_url = f"{redis_server.url.rpartition('/')[0]}/1"
    folder = tmp_path_factory.mktemp(pool)
    with (
        new_postgresql_database(postgresql_server.url) as url,
        site(folder, database_url=url, broker_url=broker_url) as made,
    ):
        made.beat().wait_for_log("beat started")
        made.worker(pool=pool).wait_for_log("ready.")
        yield made


def run_once(running, name, **fields):
    task = fields.pop("task", f"probe.{name}")
    running.mine.create(name, task=task, trigger=Once.after(timedelta(seconds=0.5)), **fields)


def test_success(running):
    run_once(running, "record", args=[1], kwargs={"b": 2})

    run = running.wait_for_run("record", "succeeded")

    assert (run.attempt, run.error, run.traceback) == (1, None, None)


def test_failure_with_a_bounded_error_and_traceback(running):
    run_once(running, "fail", kwargs={"length": 50_000})

    run = running.wait_for_run("fail", "failed")

    assert run.error.startswith("ValueError: xxx")
    assert len(run.error) <= 1_000
    assert len(run.traceback) <= 8_000


def test_a_retry_is_seen_and_counts_as_a_second_attempt(running):
    run_once(running, "retry", kwargs={"countdown": 2})

    between = running.wait_for_run("retry", "retrying")
    after = running.wait_for_run("retry", "succeeded")

    assert (between.attempt, between.finished_at) == (1, None)
    assert "not yet" in between.error
    assert (after.attempt, after.error) == (2, None)
    assert [start["retries"] for start in running.diary.starts(after.id)] == [0, 1]


def test_ignore_ends_the_run(running):
    run_once(running, "ignore")

    assert running.wait_for_run("ignore", "succeeded").error == "the task raised Ignore"


def test_reject_is_a_failure(running):
    run_once(running, "rejected", task="probe.reject", kwargs={"requeue": False})

    assert "not here" in running.wait_for_run("rejected", "failed").error


def test_reject_with_requeue_starts_anew(running):
    run_once(running, "requeued", task="probe.reject", kwargs={"requeue": True})

    run = running.wait_for_run("requeued", "succeeded")

    assert run.attempt == 2
    assert len(running.diary.starts(run.id)) == 2


def test_expired_before_the_start(running):
    run_once(running, "expired", task="probe.record", expires_after=0.5, options={"countdown": 1})

    run = running.wait_for_run("expired", "expired")

    assert run.started_at is None
    assert not running.diary.starts(run.id)


def test_revoked_by_remote_control_before_the_start(running):
    run_once(running, "revoked", task="probe.record", options={"countdown": 1.5})
    run = running.wait_for_run("revoked", "sent")

    running.app.control.revoke(run.id)

    assert running.wait_for_run("revoked", "revoked").started_at is None
    assert not running.diary.starts(run.id)


def test_a_task_that_no_worker_knows_has_failed(running):
    run_once(running, "unknown", task="probe.nobody_knows")

    assert "probe.nobody_knows" in running.wait_for_run("unknown", "failed").error


def test_a_second_message_of_the_same_run_is_ignored(running):
    run_once(running, "twice", task="probe.record")
    run = running.wait_for_run("twice", "succeeded")
    (start,) = running.diary.starts(run.id)

    running.app.send_task("probe.record", task_id=run.id, headers=start["headers"])
    witness = running.app.send_task("probe.record")

    wait_until(lambda: running.diary.starts(witness.id), within=10)
    assert len(running.diary.starts(run.id)) == 1
    assert running.wait_for_run("twice", "succeeded").attempt == 1


def test_a_task_that_no_schedule_sent_leaves_no_trace(running):
    before = running.count_runs()

    plain = running.app.send_task("probe.record")

    wait_until(lambda: running.diary.starts(plain.id), within=10)
    assert running.count_runs() == before


@pytest.fixture
def prefork_only(pool):
    if pool != "prefork":
        pytest.skip(f"the pool {pool!r} cannot end a task from outside")


@pytest.mark.usefixtures("prefork_only")
class TestEndFromOutside:
    def test_soft_time_limit(self, running):
        fields = {"kwargs": {"gate": "/nowhere"}, "options": {"soft_time_limit": 1}}
        run_once(running, "soft", task="probe.hold", **fields)

        assert "SoftTimeLimitExceeded" in running.wait_for_run("soft", "failed").error

    def test_hard_time_limit(self, running):
        fields = {"kwargs": {"gate": "/nowhere"}, "options": {"time_limit": 1}}
        run_once(running, "hard", task="probe.hold", **fields)

        run = running.wait_for_run("hard", "failed")

        assert "TimeLimitExceeded" in run.error
        assert run.finished_at is not None

    def test_terminated_by_remote_control(self, running):
        run_once(running, "terminated", task="probe.hold", kwargs={"gate": "/nowhere"})
        run = running.wait_for_run("terminated", "running")

        running.app.control.revoke(run.id, terminate=True)

        assert running.wait_for_run("terminated", "revoked").error == "terminated"

    @pytest.mark.parametrize("task", ["crash", "leave"])
    def test_a_lost_child_is_a_failure(self, running, task):
        run_once(running, task)

        run = running.wait_for_run(task, "failed")

        assert "WorkerLostError" in run.error
        assert len(running.diary.starts(run.id)) == 1

    def test_a_lost_child_with_late_acknowledgement_is_a_new_attempt(self, running):
        run_once(running, "crash_late")

        run = running.wait_for_run("crash_late", "succeeded")

        assert run.attempt == 2
        assert len(running.diary.starts(run.id)) == 2
