"""Runs whose pool process dies or that are terminated, and other runs of the same worker."""

import os
import signal

import pytest

from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from tests.support.final_statuses import verify_statuses
from tests.support.gated_tasks import INCLUDE, gate_for_attempt
from tests.support.waiting import wait_until

BYSTANDERS = 20


@pytest.fixture
def gate(fault_site):
    """Return the gate of the tasks; start a beat and a worker that import the tasks."""
    fault_site.config["include"] = [INCLUDE]
    fault_site.beat()
    fault_site.worker().wait_for_log("ready.")
    return fault_site.gate("attempt")


def start_victim(fault_site, workload, gate, task, **fields):
    """Start a run; return the record that its first attempt wrote."""
    workload.create_one_offs(1, first_in=1.5, task=task, kwargs={"gate": str(gate)}, **fields)
    wait_until(lambda: fault_site.count_runs(Run.status == Status.RUNNING) == 1, within=30)
    workload.wait_for_starts(1)
    (start,) = fault_site.event_log.starts()
    return start


@pytest.mark.parametrize("task", ["hold", "hold_late"])
def test_a_run_whose_pool_process_is_killed_has_failed(fault_site, workload, gate, task):
    start = start_victim(fault_site, workload, gate, f"attempts.{task}")
    workload.create_one_offs(BYSTANDERS, first_in=1.5)

    os.kill(start["pid"], signal.SIGKILL)

    ends = {"failed": 1, "succeeded": BYSTANDERS}
    fault = f"kill -9 of a pool process ({task})"
    verify_statuses(workload, fault, expected=ends, starts=1 + BYSTANDERS)
    assert "WorkerLostError" in error_of(fault_site, start)


def test_a_run_with_reject_on_worker_lost_starts_again_after_its_pool_process_is_killed(
    fault_site, workload, gate
):
    start = start_victim(fault_site, workload, gate, "attempts.hold_rejecting")
    workload.create_one_offs(BYSTANDERS, first_in=1.5)

    with workload.fault():
        os.kill(start["pid"], signal.SIGKILL)
        gate_for_attempt(gate, 2).touch()

    workload.verify("kill -9 of a pool process, reject_on_worker_lost", extra_starts=1)
    assert fault_site.count_runs(Run.id == start["run_id"], Run.attempt == 2) == 1


@pytest.mark.parametrize(
    ("limit", "reason"),
    [("soft_time_limit", "SoftTimeLimitExceeded"), ("time_limit", "TimeLimitExceeded")],
)
def test_a_run_that_exceeds_its_time_limit_has_failed(fault_site, workload, gate, limit, reason):
    start = start_victim(fault_site, workload, gate, "attempts.hold", options={limit: 2})
    workload.create_one_offs(BYSTANDERS, first_in=1.5)

    ends = {"failed": 1, "succeeded": BYSTANDERS}
    verify_statuses(workload, f"{limit} exceeded", expected=ends, starts=1 + BYSTANDERS)
    assert reason in error_of(fault_site, start)


def test_a_terminated_run_is_revoked(fault_site, workload, gate):
    start = start_victim(fault_site, workload, gate, "attempts.hold")
    workload.create_one_offs(BYSTANDERS, first_in=1.5)

    fault_site.app.control.revoke(start["run_id"], terminate=True)

    ends = {"revoked": 1, "succeeded": BYSTANDERS}
    verify_statuses(workload, "revoke(terminate=True)", expected=ends, starts=1 + BYSTANDERS)
    assert error_of(fault_site, start) == "terminated"


def test_a_run_that_is_revoked_in_the_queue_never_starts(fault_site, workload, gate):
    workload.create_one_offs(2, first_in=1.5, task="attempts.hold", kwargs={"gate": str(gate)})
    workload.wait_for_starts(2)
    workload.create_one_offs(BYSTANDERS, first_in=1.5)
    waiting = wait_until(lambda: queued(fault_site), within=30)

    fault_site.app.control.revoke(waiting, reply=True, timeout=5)
    gate_for_attempt(gate, 1).touch()

    ends = {"revoked": BYSTANDERS, "succeeded": 2}
    verify_statuses(workload, "revoke of runs in the queue", expected=ends, starts=2)
    assert not any(fault_site.event_log.starts(run_id) for run_id in waiting)


def queued(fault_site):
    """Return the ids of the sent runs, if all of them are sent."""
    sent = [run.id for run in fault_site.all_runs() if run.status == Status.SENT]
    return sent if len(sent) == BYSTANDERS else None


def error_of(fault_site, start):
    (run,) = [run for run in fault_site.all_runs() if run.id == start["run_id"]]
    return run.error
