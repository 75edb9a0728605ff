"""Workers that are suspended for longer than dynbeat_node_timeout, and then continue."""

import pytest

from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from tests.support.final_statuses import verify_statuses
from tests.support.gated_tasks import INCLUDE, gate_for_attempt
from tests.support.killed_beats import suspended
from tests.support.waiting import wait_until


@pytest.fixture
def gate(fault_site):
    """Return the gate of the tasks. Processes that start afterwards import the tasks."""
    fault_site.config.update(include=[INCLUDE], worker_prefetch_multiplier=1)
    return fault_site.gate("attempt")


def start_one(fault_site, workload, gate, *, task="attempts.hold", **fields):
    """Start one run; return when its first attempt is running."""
    workload.create_one_offs(1, first_in=1.5, task=task, kwargs={"gate": str(gate)}, **fields)
    wait_for(fault_site, Run.status == Status.RUNNING)
    workload.wait_for_starts(1)


def wait_for(fault_site, *conditions):
    """Return when one run matches ``conditions``."""
    wait_until(
        lambda: fault_site.count_runs(*conditions) == 1,
        within=30,
        message="not in that state",
    )


def running(fault_site):
    """Return the running run; skipped runs may be newer."""
    return wait_until(
        lambda: next((run for run in fault_site.runs() if run.status == "running"), None),
        within=30,
        message="nothing runs",
    )


def is_in_its_second_attempt(fault_site):
    second = (Run.status == Status.RUNNING, Run.attempt == 2, Run.worker == "other@test")
    return fault_site.count_runs(*second) == 1


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_the_outcome_of_a_slow_worker_replaces_lost(fault_site, workload, gate, pool):
    fault_site.beat()
    slow = fault_site.worker(pool=pool, name="slow@test")
    start_one(fault_site, workload, gate)

    with suspended(slow):
        wait_for(fault_site, Run.status == Status.LOST)
    with workload.fault():
        gate_for_attempt(gate, 1).touch()

    workload.verify(f"SIGSTOP of worker ({pool}) for longer than dynbeat_node_timeout: lost, then")
    wait_for(fault_site, Run.status == Status.SUCCEEDED, Run.attempt == 1, Run.error.is_(None))


def test_the_late_outcome_of_an_attempt_does_not_change_the_next(fault_site, workload, gate):
    slow = start_second_attempt_while_the_first_runs(
        fault_site, workload, gate, task="attempts.hold"
    )

    gate_for_attempt(gate, 1).touch()
    # The recorder handles the outcome before Celery writes this line.
    slow.wait_for_log("succeeded in")

    assert is_in_its_second_attempt(fault_site)
    with workload.fault():
        gate_for_attempt(gate, 2).touch()
    workload.verify("SIGSTOP of worker, on_lost='rerun': the first ends late", extra_starts=1)
    assert fault_site.all_runs()[0].worker == "other@test"


def test_the_late_retry_of_an_attempt_starts_nothing(fault_site, workload, gate):
    slow = start_second_attempt_while_the_first_runs(
        fault_site, workload, gate, task="attempts.retry_first"
    )

    gate_for_attempt(gate, 1).touch()
    slow.wait_for_log("not yet")
    wait_until(lambda: " refused: " in fault_site.report(), within=30)

    assert is_in_its_second_attempt(fault_site)
    with workload.fault():
        gate_for_attempt(gate, 2).touch()
    workload.verify("SIGSTOP of worker, on_lost='rerun': the first retries late", extra_starts=1)
    assert fault_site.all_runs()[0].retries == 0


def start_second_attempt_while_the_first_runs(fault_site, workload, gate, *, task):
    """Return the worker of the first attempt; another worker executes the second attempt."""
    fault_site.beat()
    slow = fault_site.worker(pool="threads", name="slow@test")
    start_one(fault_site, workload, gate, task=task, on_lost="rerun")
    with suspended(slow):
        fault_site.worker(pool="threads", name="other@test")
        wait_until(
            lambda: is_in_its_second_attempt(fault_site), within=30, message="no second attempt"
        )
        workload.wait_for_starts(2)
    return slow


@pytest.mark.parametrize("task", ["hold", "retry_first"])
def test_the_outcome_of_a_slow_worker_counts_until_the_next_attempt_starts(
    fault_site, workload, gate, task
):
    fault_site.beat()
    # One thread, so the worker takes the message of the next attempt after the end of the first.
    slow = fault_site.worker("-c", "1", pool="threads", name="slow@test")
    start_one(fault_site, workload, gate, task=f"attempts.{task}", on_lost="rerun")

    with suspended(slow):
        wait_for(fault_site, Run.status == Status.SENT, Run.attempt == 1)
        gate_for_attempt(gate, 1).touch()
    with workload.fault():
        gate_for_attempt(gate, 2).touch()

    # Only the retry of the task is another start.
    starts = 2 if task == "retry_first" else 1
    fault = f"SIGSTOP of worker, on_lost='rerun': the first ends before the second ({task})"
    verify_statuses(workload, fault, expected={"succeeded": 1}, starts=starts)
    assert " refused: " in slow.text
