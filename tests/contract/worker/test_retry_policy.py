"""A failed run of a schedule with a retry policy starts again, under the same id."""

import os
from datetime import timedelta
from types import SimpleNamespace

import pytest
from billiard.exceptions import WorkerLostError
from celery.exceptions import TimeLimitExceeded
from sqlalchemy import select

from celery_dynbeat import Retry
from celery_dynbeat.broker import run_headers
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from celery_dynbeat.store import health
from celery_dynbeat.store.runs import attempts
from celery_dynbeat.testing import ManualBeat
from celery_dynbeat.worker.signal_handlers import reporting
from celery_dynbeat.worker.task_guard import guarded_request
from tests.support.applications import execute
from tests.support.executing_worker import ExecutingWorker
from tests.support.suites import each_database

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
#: Retries after 10 s and 20 s. No other fire time comes before.
POLICY = Retry(max_retries=2, backoff=10)


class CrashError(BaseException):
    """Beat crashes at this point."""


@pytest.fixture
def worker(dynbeat, clock):
    made = ExecutingWorker(dynbeat, clock)
    yield made
    made.outcomes.disconnect()
    made.outcomes.close()


def sent_after(worker, delay):
    """Return the run that beat sends again once ``delay`` has passed, None if it sends none."""
    before = len(worker.beat.publisher.sent)
    worker.clock.advance(delay)
    worker.node.heartbeat()
    worker.beat.run_until_idle()
    new = worker.beat.publisher.sent[before:]
    return new[0] if new else None


def fail(worker, run):
    worker.consume(run, ValueError("no"))
    return worker.mine.get_run(run.run_id)


def test_a_failed_run_starts_again_until_its_retries_are_used_up(worker):
    worker.create(retry=POLICY, max_runs=1)
    first = worker.send()

    found = fail(worker, first)
    first_end = worker.clock.now()
    assert (found.status, found.error, found.attempt) == ("retrying", "ValueError: no", 1)
    assert found.retry_at == worker.clock.now() + timedelta(seconds=10)
    assert "ValueError" in found.traceback
    assert sent_after(worker, timedelta(seconds=9)) is None

    second = sent_after(worker, SECOND)
    assert (second.run_id, second.attempt, second.retries) == (first.run_id, 1, 1)
    found = fail(worker, second)
    second_end = worker.clock.now()
    assert (found.status, found.attempt, found.retries) == ("retrying", 2, 1)
    assert found.retry_at == worker.clock.now() + timedelta(seconds=20)

    ends = [first_end, second_end]
    found = fail(worker, sent_after(worker, timedelta(seconds=20)))
    assert (found.status, found.attempt, found.retries, found.retry_at) == ("failed", 3, 2, None)
    assert list(found.earlier_errors) == [
        f"attempt {number}, {at:%Y-%m-%dT%H:%M:%SZ}: ValueError: no"
        for number, at in enumerate(ends, start=1)
    ]
    assert sent_after(worker, timedelta(days=1)) is None
    assert len(worker.mine.runs()) == 1


def test_a_retry_that_succeeds_ends_the_run(worker):
    worker.create(retry=POLICY, max_runs=1)
    fail(worker, worker.send())

    retry = sent_after(worker, timedelta(seconds=10))
    worker.consume(retry)

    found = worker.mine.get_run(retry.run_id)
    assert (found.status, found.attempt, found.error) == ("succeeded", 2, None)


def test_a_schedule_without_a_policy_has_no_header_and_no_retry(worker):
    worker.create(max_runs=1)
    run = worker.send()

    assert not {header for header in run_headers(run) if "retry" in header}
    assert fail(worker, run).status == "failed"


def test_a_failure_counts_once_when_the_run_has_failed_for_good(worker):
    worker.create(retry=Retry(max_retries=1, backoff=10), max_runs=2, pause_after_failures=1)

    fail(worker, worker.send())
    assert worker.mine.get("n").failing_since is None

    fail(worker, sent_after(worker, timedelta(seconds=10)))
    assert worker.mine.get("n").failing_since == worker.clock.now()


def test_celerys_own_retries_count_and_come_first(worker):
    worker.create(retry=Retry(max_retries=1, backoff=10), max_runs=1)
    run = worker.send()
    worker.ends = []
    # Celery has used up the one retry of its own.
    worker.node.start(run)
    worker.node.finish(run, Status.RETRYING, retry_at=worker.clock.now())
    again = run._replace(attempt=1, retries=1)

    assert fail(worker, again).status == "failed"


def test_with_until_next_fire_no_retry_comes_at_or_after_the_next_fire_time(worker):
    worker.create(retry=Retry(max_retries=3, backoff=40, until_next_fire=True))
    run = worker.send()

    assert run.next_fire_at == run.fire_at + MINUTE
    assert fail(worker, run).status == "retrying"
    # The second would come 80 s later.
    again = sent_after(worker, timedelta(seconds=40))
    assert again.next_fire_at == run.next_fire_at
    assert fail(worker, again).status == "failed"


def test_without_a_next_fire_time_until_next_fire_bounds_nothing(worker):
    worker.create(retry=Retry(max_retries=1, backoff=3600, until_next_fire=True), max_runs=1)

    assert fail(worker, worker.send()).status == "retrying"


def test_a_second_delivery_of_the_failed_message_does_not_start_the_retry(worker):
    worker.create(retry=POLICY, max_runs=1)
    run = worker.send()
    fail(worker, run)

    assert not worker.node.start(run, redelivered=True)
    retry = sent_after(worker, timedelta(seconds=10))
    assert not worker.node.start(run, redelivered=True)
    assert worker.node.start(retry)
    assert not worker.node.start(retry)


@pytest.mark.parametrize("point", ["swept", "published"])
@each_database
def test_the_next_beat_sends_the_retry_after_a_crash(worker, dynbeat, point):
    worker.create(retry=POLICY, max_runs=1)
    fail(worker, worker.send())
    worker.clock.advance(timedelta(seconds=10))

    def crash(reached):
        if reached == point:
            raise CrashError

    with pytest.raises(CrashError):
        ManualBeat(dynbeat, failpoint=crash).tick()

    assert sent_after(worker, timedelta()) is None
    retry = sent_after(worker, dynbeat.context.settings.dispatch_timeout)
    # Counted once, although two beats have sent it.
    assert (retry.attempt, retry.retries) == (1, 1)
    assert worker.node.start(retry)
    assert not worker.node.start(retry)


def test_a_pause_by_sql_revokes_the_retry_when_it_is_due(worker, dynbeat):
    worker.create(retry=POLICY)
    run = worker.send()
    fail(worker, run)
    execute(dynbeat, "UPDATE dynbeat_schedule SET enabled = false, next_run_at = NULL")

    assert sent_after(worker, timedelta(seconds=10)) is None
    assert worker.status(run) == "revoked"


def test_a_waiting_run_can_be_cancelled(worker):
    worker.create(retry=POLICY, max_runs=1)
    run = worker.send()
    fail(worker, run)

    worker.mine.cancel_run(run.run_id)

    assert worker.status(run) == "revoked"
    assert sent_after(worker, timedelta(days=1)) is None


def test_a_waiting_run_does_not_expire(worker):
    worker.create(retry=Retry(max_retries=1, backoff=600), max_runs=1, expires_after=60)
    fail(worker, worker.send())

    assert sent_after(worker, timedelta(seconds=600)) is not None


def test_the_retry_of_a_replaced_run_is_not_made(worker):
    worker.create(retry=POLICY, overlap="cancel_previous")
    first = worker.send()
    worker.node.start(first)
    worker.send()
    ended = attempts.AttemptEnd(
        run_id=first.run_id,
        attempt=1,
        worker="w1",
        status=Status.RETRYING,
        at=worker.clock.now(),
        retry_at=worker.clock.now(),
        sent_by_beat=True,
        retries=0,
    )

    assert worker.context.database.run(lambda session: attempts.finish(session, ended))

    assert worker.status(first) == "revoked"


@pytest.mark.parametrize("message", ["its own", "another", None])
@each_database
def test_the_main_process_retries_the_run_of_a_killed_process(worker, dynbeat, message):
    worker.create(retry=POLICY)
    run, other = worker.send(), worker.send()
    worker.node.start(run)
    exception = TimeLimitExceeded(2)
    outcomes = worker.outcomes
    # The main process of this node.
    outcomes._hostname = "w1"
    request = {"its own": request_of(run), "another": request_of(other), None: None}[message]

    with reporting(request, pid=None):
        outcomes.on_failure(dynbeat.app.tasks["t"], run.run_id, exception, None)

    # Without its message, the policy is not known.
    assert worker.status(run) == ("retrying" if message == "its own" else "failed")


@pytest.mark.parametrize("has_processes", [True, False])
@pytest.mark.parametrize("report", ["on_failure", "on_timeout"])
def test_the_request_in_the_main_process_gives_the_policy(worker, dynbeat, report, has_processes):
    worker.create(retry=POLICY, max_runs=1)
    run = worker.send()
    worker.node.start(run)
    worker.outcomes._hostname = "w1"
    error = TimeLimitExceeded(2)

    class CelerysRequest:
        _context = request_of(run)
        # Without processes, the id of a greenlet.
        worker_pid = os.getpid() if has_processes else 2**40

        def on_failure(self, *_):
            worker.outcomes.on_failure(dynbeat.app.tasks["t"], run.run_id, error, None)

        on_timeout = on_failure

    request = guarded_request(CelerysRequest, lambda *_: None, has_processes=has_processes)()
    getattr(request, report)(SimpleNamespace(exception=error))

    assert worker.status(run) == "retrying"


@pytest.mark.parametrize(("delay", "is_notified"), [(3, True), (600, False)])
def test_beat_is_notified_of_a_retry_that_is_due_before_its_next_poll(
    worker, monkeypatch, delay, is_notified
):
    worker.create(retry=Retry(max_retries=1, backoff=delay), max_runs=1)
    run = worker.send()
    notified = []
    monkeypatch.setattr(worker.context.notifier, "notify", notified.append)

    fail(worker, run)

    assert bool(notified) is is_notified


def test_a_run_that_waits_for_its_retry_is_no_unstarted_run(worker, dynbeat):
    worker.create(retry=Retry(max_retries=1, backoff=600), max_runs=1)
    fail(worker, worker.send())

    assert dynbeat.context.database.run(health.unstarted_runs).count.count == 0


def test_a_policy_that_only_sql_wrote_and_that_is_invalid_does_not_apply(worker, dynbeat):
    worker.create(max_runs=1)
    execute(dynbeat, "UPDATE dynbeat_schedule SET retry = :retry", retry='{"max_retries": -1}')

    run = worker.send()

    assert (run.retry, worker.mine.get("n").retry) == (None, None)
    assert fail(worker, run).status == "failed"


@each_database
def test_the_retry_is_due_once_however_many_beats_sweep(worker, dynbeat):
    worker.create(retry=POLICY, max_runs=1)
    run = worker.send()
    fail(worker, run)
    worker.clock.advance(timedelta(seconds=10))
    beats = [ManualBeat(dynbeat), ManualBeat(dynbeat)]

    for beat in beats:
        beat.run_until_idle()

    assert [len(beat.publisher.sent) for beat in beats] == [1, 0]
    with dynbeat.context.database.engine.connect() as connection:
        statuses = connection.execute(select(Run.status, Run.retries)).all()
    assert statuses == [("sent", 1)]


def request_of(run):
    """Return the request of a run's message in the main process."""
    return SimpleNamespace(
        id=run.run_id, headers=run_headers(run), retries=run.retries, is_eager=False
    )


@pytest.mark.parametrize("policy", [POLICY, None])
@pytest.mark.parametrize("is_same", [True, False])
def test_the_report_of_a_dead_process_ends_no_attempt_of_another_process(
    worker, dynbeat, policy, is_same
):
    worker.create(retry=policy, max_runs=1)
    first = worker.send()
    assert worker.node.start(first)
    retry_at = worker.clock.now() + 10 * SECOND
    sent_by_beat = policy is not None
    worker.node.finish(first, Status.RETRYING, retry_at=retry_at, sent_by_beat=sent_by_beat)
    second = sent_after(worker, 10 * SECOND) if policy else first._replace(attempt=1, retries=1)
    assert worker.node.start(second)
    worker.outcomes._hostname = "w1"
    pid = os.getpid() if is_same else os.getpid() + 1

    # Another process recorded the end of its attempt before it died.
    with reporting(request_of(second), pid=pid):
        task, error = dynbeat.app.tasks["t"], WorkerLostError("signal 9")
        worker.outcomes.on_failure(task, second.run_id, error, None)

    ended = "retrying" if policy else "failed"
    assert worker.status(second) == (ended if is_same else "running")


@pytest.mark.parametrize("waits_for", ["quiet", "hold"])
def test_a_retry_starts_within_a_minute_of_the_release_or_the_end_of_quiet_days(
    dynbeat, worker, waits_for
):
    worker.create(retry=POLICY, max_runs=1)
    first = worker.send()
    fail(worker, first)
    if waits_for == "hold":
        worker.mine.hold()
    else:
        today = worker.clock.now().date()
        dynbeat.calendars.upsert("days", dates=[today + timedelta(days=n) for n in range(9)])
        worker.mine.set_quiet_hours(calendar="days")
    assert sent_after(worker, timedelta(hours=1)) is None

    if waits_for == "hold":
        worker.mine.release()
    else:
        worker.mine.clear_quiet_hours()

    assert sent_after(worker, MINUTE).run_id == first.run_id
