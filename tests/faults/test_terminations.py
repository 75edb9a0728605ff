"""``overlap="cancel_previous"`` where workers can end a task, and where nothing can."""

import pytest

from celery_dynbeat import Every
from celery_dynbeat.beat.termination import NOT_ENDED
from celery_dynbeat.db.models import Run, Status
from tests.support.waiting import wait_until


@pytest.fixture
def replaced(fault_site):
    """Give a function that returns a run in progress, and what has become of it when asked."""
    gates = []

    def replace(pool):
        gates.append(fault_site.gate("held"))
        fault_site.beat().wait_for_log("beat started")
        worker = fault_site.worker(pool=pool).wait_for_log("ready.")
        fields = {"kwargs": {"gate": str(gates[-1])}, "overlap": "cancel_previous"}
        fault_site.mine.create("takes-over", task="probe.hold", trigger=Every(2), **fields)
        first = fault_site.wait_for_run("takes-over", "running")

        def found():
            return next(run for run in fault_site.runs() if run.id == first.id)

        return found, worker

    yield replace
    for gate in gates:
        gate.touch()


def successors(fault_site, first):
    """Return how many later runs have reached the broker."""
    return fault_site.count_runs(
        Run.id != first.id, Run.scheduled_for > first.scheduled_for, Run.sent_at.is_not(None)
    )


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
@pytest.mark.combination(broker="rabbitmq")
def test_a_pool_that_can_ends_the_run_before(replaced, pool):
    found, _ = replaced(pool)

    run = wait_until(lambda: (it := found()).finished_at and it, within=20)

    assert (run.status, run.error) == ("revoked", "terminated")


def test_a_pool_that_cannot_says_so_once_and_the_next_runs_go_out(fault_site, replaced):
    found, worker = replaced("threads")

    wait_until(lambda: successors(fault_site, found()) >= 3, within=30)

    assert found().status == "running"
    assert (
        found().error == "overlap: a newer run was sent, and the 'thread' pool cannot end this one"
    )
    warnings = [line for line in worker.text.splitlines() if "cannot be terminated" in line]
    assert ["WARNING" in line for line in warnings].count(True) == 1
    assert "NotImplementedError" not in worker.text


@pytest.mark.parametrize(
    ("pool", "remote_control"), [("solo", True), ("prefork", False)], ids=["solo", "deaf"]
)
def test_a_run_that_no_worker_ends_is_noted_and_the_next_are_sent(
    fault_site, replaced, pool, remote_control
):
    fault_site.config["worker_enable_remote_control"] = remote_control
    found, _ = replaced(pool)

    wait_until(lambda: found().error, within=30)

    assert (found().status, found().error) == ("running", NOT_ENDED)
    assert successors(fault_site, found()) >= 1
    fault_site.mine.pause("takes-over")
    fault_site.gate("held").touch()
    wait_until(lambda: found().status == Status.SUCCEEDED, within=20)
    assert found().error == NOT_ENDED


@pytest.mark.combination(broker="rabbitmq")
def test_a_beat_without_the_right_to_broadcast_sends_on_and_says_so_once(
    fault_site, fault_services
):
    server, url = fault_services.broker_server, fault_services.broker_url
    vhost = url.rpartition("/")[2]
    # The worker, which declares the exchange, has all rights.
    fault_site.worker(name="w0@test", pool="threads").wait_for_log("ready.")
    write = "^(celery|amq\\.default)$"
    fault_site.config["broker_url"] = server.create_user(f"{vhost}-beat", vhost, write=write)
    try:
        beat = fault_site.beat().wait_for_log("beat started")
        fields = {"kwargs": {"gate": "/nowhere"}, "overlap": "cancel_previous"}
        fault_site.mine.create("takes-over", task="probe.hold", trigger=Every(1), **fields)
        first = fault_site.wait_for_run("takes-over", "running", "sent")
        wait_until(lambda: successors(fault_site, first) >= 5, within=30)

        def noted():
            return fault_site.count_runs(Run.error.like("%right to write%")) >= 1

        wait_until(noted, within=20)
        assert beat.text.count("may not write to") == 1
        assert "pass failed" not in beat.text
        fault_site.end_processes()
    finally:
        server.delete_user(f"{vhost}-beat")
