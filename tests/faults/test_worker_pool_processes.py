"""Pool processes that die while their worker lives, and Celery sends no signal for the run."""

import os
import signal
from datetime import timedelta

import pytest

from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from tests.support.final_statuses import verify_statuses
from tests.support.gated_tasks import INCLUDE, gate_for_attempt
from tests.support.processes import children_of
from tests.support.versions import needs_celery
from tests.support.waiting import wait_until

BYSTANDERS = 20
NOTED = "redelivered while it is running"


@pytest.fixture
def gate(fault_site):
    """Return the gate of the tasks. Processes that start afterwards import the tasks."""
    fault_site.config["include"] = [INCLUDE]
    return fault_site.gate("attempt")


def start_victim(fault_site, workload, gate, task, **fields):
    """Start a run; return the record that its first attempt wrote."""
    workload.create_one_offs(1, first_in=1.5, task=task, kwargs={"gate": str(gate)}, **fields)
    wait_until(lambda: fault_site.count_runs(Run.status == Status.RUNNING) == 1, within=30)
    workload.wait_for_starts(1)
    (start,) = fault_site.event_log.starts()
    return start


def start_at(fault_site, workload, gate, task, **fields):
    """Start a run at the first of two workers; return its record and the second worker.

    Later messages reach only the second worker.
    """
    fault_site.beat()
    fault_site.worker(name="first@test").wait_for_log("ready.")
    start = start_victim(fault_site, workload, gate, task, **fields)
    other = fault_site.worker(name="other@test").wait_for_log("ready.")
    cancelled = fault_site.app.control.cancel_consumer(
        "celery", destination=["first@test"], reply=True, timeout=10
    )
    assert cancelled
    return start, other


def attempts_of(fault_site, start):
    (run,) = [run for run in fault_site.all_runs() if run.id == start["run_id"]]
    return run.attempt, run.retries


def kill_with_two_workers(fault_site, workload, gate):
    start, other = start_at(fault_site, workload, gate, "attempts.hold_rejecting")
    workload.create_one_offs(BYSTANDERS, first_in=1.5)

    with workload.fault():
        os.kill(start["pid"], signal.SIGKILL)
        other.wait_for_log(NOTED)
        gate_for_attempt(gate, 2).touch()

    workload.verify("kill -9 of a pool process, the message to another worker", extra_starts=1)
    assert attempts_of(fault_site, start) == (2, 0)


@pytest.mark.combination(broker="redis")
def test_a_run_whose_message_goes_to_another_worker_starts_again_on_redis(
    fault_site, workload, gate
):
    kill_with_two_workers(fault_site, workload, gate)


@pytest.mark.combination(broker="rabbitmq")
def test_a_run_whose_message_goes_to_another_worker_starts_again_on_rabbitmq(
    fault_site, workload, gate
):
    kill_with_two_workers(fault_site, workload, gate)


@needs_celery(5, 7, "task_retry_on_worker_lost")
def test_the_retry_that_celery_sends_for_a_dead_pool_process_starts_once(
    fault_site, workload, gate
):
    start, _ = start_at(fault_site, workload, gate, "attempts.hold_retrying")
    workload.create_one_offs(BYSTANDERS, first_in=1.5)

    with workload.fault():
        os.kill(start["pid"], signal.SIGKILL)
        gate_for_attempt(gate, 2).touch()

    workload.verify("kill -9 of a pool process, retry_on_worker_lost", extra_starts=1)
    assert attempts_of(fault_site, start) == (2, 1)


def test_a_run_whose_process_dies_after_its_result_was_stored_has_succeeded(
    fault_site, workload, gate
):
    results = fault_site.folder / "results"
    results.mkdir()
    fault_site.config["result_backend"] = f"file://{results}"
    start, _ = start_at(fault_site, workload, gate, "attempts.hold_stored", on_lost="rerun")

    gate_for_attempt(gate, 1).touch()

    verify_statuses(
        workload,
        "kill -9 of a pool process after its result is stored",
        expected={"succeeded": 1},
        starts=1,
    )
    assert attempts_of(fault_site, start) == (1, 0)


def test_a_run_whose_message_a_time_limit_requeues_starts_again(fault_site, workload, gate):
    fault_site.beat()
    # The message can reach either worker.
    for name in ("first@test", "other@test"):
        fault_site.worker(name=name).wait_for_log("ready.")
    gate_for_attempt(gate, 2).touch()

    start = start_victim(
        fault_site, workload, gate, "attempts.hold_limited", options={"time_limit": 2}
    )

    workload.verify("time_limit with acks_on_timeout=False", extra_starts=1)
    assert attempts_of(fault_site, start) == (2, 0)


@pytest.mark.combination(broker="rabbitmq")
def test_a_run_that_is_cancelled_when_its_worker_loses_the_broker_starts_again(
    fault_site, workload, gate, broker_server, proxied
):
    proxy = proxied(broker_server)
    direct = fault_site.config["broker_url"]
    fault_site.beat()
    fault_site.config.update(
        broker_url=proxy.through(direct), worker_cancel_long_running_tasks_on_connection_loss=True
    )
    first = fault_site.worker(name="first@test").wait_for_log("ready.")
    start = start_victim(fault_site, workload, gate, "attempts.hold_late")
    fault_site.config["broker_url"] = direct
    other = fault_site.worker(name="other@test").wait_for_log("ready.")

    with workload.fault():
        proxy.refuse()
        other.wait_for_log(NOTED)
        gate_for_attempt(gate, 2).touch()

    workload.verify("cancelled on connection loss", extra_starts=1)
    assert attempts_of(fault_site, start) == (2, 0)
    assert first.exit_status is None


def test_a_run_that_no_thread_of_its_worker_executes_is_found(fault_site, workload, gate):
    fault_site.beat()
    fault_site.worker(pool="threads").wait_for_log("ready.")
    start = start_victim(fault_site, workload, gate, "attempts.leave_first", on_lost="rerun")

    with workload.fault():
        gate_for_attempt(gate, 1).touch()
        gate_for_attempt(gate, 2).touch()

    workload.verify("a thread ends without an outcome", extra_starts=1)
    assert attempts_of(fault_site, start) == (2, 0)


def seen(fault_site, worker):
    return next(node.seen_at for node in fault_site.nodes("worker") if node.name == worker)


@pytest.mark.combination(broker="rabbitmq")
def test_a_run_that_starts_when_its_worker_loses_the_broker_does_not_start_twice(
    fault_site, workload, gate, broker_server, proxied
):
    proxy = proxied(broker_server)
    direct = fault_site.config["broker_url"]
    fault_site.beat()
    fault_site.config["broker_url"] = proxy.through(direct)
    # Celery's heartbeat events would wait for the broker and block the event loop.
    first = fault_site.worker("-c", "1", "--without-heartbeat", name="first@test")
    first.wait_for_log("ready.")
    fault_site.config["broker_url"] = direct
    (child,) = children_of(first.pid)

    with workload.fault():
        os.kill(child, signal.SIGSTOP)
        workload.create_one_offs(
            1, first_in=0.5, task="attempts.hold_late", kwargs={"gate": str(gate)}
        )
        first.wait_for_log("received")
        os.kill(first.pid, signal.SIGSTOP)
        proxy.refuse()
        # The process reports that it has accepted the task. The main process sees the broken
        # connection before that, and drops the requests that it does not know to be accepted.
        os.kill(child, signal.SIGCONT)
        workload.wait_for_starts(1)
        os.kill(first.pid, signal.SIGCONT)
        first.wait_for_log("Connection to broker lost")
        fault_site.worker(name="other@test").wait_for_log(NOTED)
    noted_at = seen(fault_site, "first@test")
    # The check has run after the grace time.
    enough = noted_at + timedelta(seconds=8)
    wait_until(lambda: seen(fault_site, "first@test") > enough, within=30)
    gate_for_attempt(gate, 1).touch()

    workload.verify("a run that starts when its worker loses the broker")
