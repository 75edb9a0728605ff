"""``overlap="cancel_previous"`` with workers that can terminate a task, and with others."""

import pytest

from celery_dynbeat import Every
from celery_dynbeat.beat.termination import NOT_ENDED
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from tests.support.waiting import wait_until


@pytest.fixture
def replaced(fault_site):
    """Yield a function that starts a run and returns a reader of its row, and its worker."""
    gates = []

    def replace(pool):
        gates.append(fault_site.gate("held"))
        fault_site.beat().wait_for_log("beat started")
        worker = fault_site.worker(pool=pool).wait_for_log("ready.")
        fields = {"kwargs": {"gate": str(gates[-1])}, "overlap": "cancel_previous"}
        fault_site.mine.create("takes-over", task="probe.hold", trigger=Every(2), **fields)
        first = fault_site.wait_for_run("takes-over", "running")

        def read_run():
            return next(run for run in fault_site.runs() if run.id == first.id)

        return read_run, worker

    yield replace
    for gate in gates:
        gate.touch()


def later_sent_runs(fault_site, first):
    """Return the number of later runs that were sent."""
    return fault_site.count_runs(
        Run.id != first.id, Run.fire_at > first.fire_at, Run.sent_at.is_not(None)
    )


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
@pytest.mark.combination(broker="rabbitmq")
def test_a_pool_that_can_terminate_tasks_ends_the_previous_run(replaced, pool):
    read_run, _ = replaced(pool)

    run = wait_until(lambda: (it := read_run()).finished_at and it, within=20)

    assert (run.status, run.error) == ("revoked", "terminated")


def test_a_pool_that_cannot_terminate_warns_once_and_the_next_runs_are_sent(fault_site, replaced):
    read_run, worker = replaced("threads")

    wait_until(lambda: later_sent_runs(fault_site, read_run()) >= 3, within=30)

    assert read_run().status == "running"
    assert (
        read_run().error
        == "overlap: a newer run was sent, and the 'thread' pool cannot end this one"
    )
    warnings = [line for line in worker.text.splitlines() if "cannot be terminated" in line]
    assert ["WARNING" in line for line in warnings].count(True) == 1
    assert "NotImplementedError" not in worker.text


@pytest.mark.parametrize(
    ("pool", "remote_control"),
    [("solo", True), ("prefork", False)],
    ids=["solo", "no-remote-control"],
)
def test_a_run_that_no_worker_terminates_is_noted_and_the_next_runs_are_sent(
    fault_site, replaced, pool, remote_control
):
    fault_site.config["worker_enable_remote_control"] = remote_control
    read_run, _ = replaced(pool)

    wait_until(lambda: read_run().error, within=30)

    assert (read_run().status, read_run().error) == ("running", NOT_ENDED)
    assert later_sent_runs(fault_site, read_run()) >= 1
    fault_site.mine.pause("takes-over")
    fault_site.gate("held").touch()
    wait_until(lambda: read_run().status == Status.SUCCEEDED, within=20)
    assert read_run().error == NOT_ENDED
