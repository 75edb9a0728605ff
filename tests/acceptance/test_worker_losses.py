"""Workers that are killed or stopped while they execute a run."""

import os
import signal
from datetime import timedelta

from celery_dynbeat import Once
from tests.support.waiting import wait_until


def hold(running, task="probe.hold"):
    """Return a run that is executed, and the gate that ends it."""
    gate = running.gate("hold")
    running.mine.create(
        "held",
        task=task,
        kwargs={"gate": str(gate)},
        trigger=Once.after(timedelta(seconds=1)),
    )
    return running.wait_for_run("held", "running"), gate


def test_a_new_worker_of_the_same_name_starts_the_run_again_at_once(rabbitmq_site):
    rabbitmq_site.beat()
    killed = rabbitmq_site.worker()
    run, gate = hold(rabbitmq_site, "probe.hold_late")

    killed.kill()
    successor = rabbitmq_site.worker()

    rabbitmq_site.wait_for_run("held", "running", where=lambda found: found.attempt == 2)
    gate.touch()
    after = rabbitmq_site.wait_for_run("held", "succeeded")
    assert (after.id, after.attempt, after.worker) == (run.id, 2, run.worker)
    assert len(rabbitmq_site.event_log.starts(run.id)) == 2
    assert "deferred" not in successor.text


def test_a_worker_that_stops_deregisters(redis_site):
    redis_site.beat().wait_for_log("beat started")
    worker = redis_site.worker().wait_for_log("ready.")
    (node,) = wait_until(lambda: redis_site.nodes("worker"), within=5)
    assert node.stopped_at is None

    os.kill(worker.pid, signal.SIGTERM)

    assert worker.wait() == 0
    (node,) = redis_site.nodes("worker")
    assert (node.name, node.stopped_at is not None) == ("w1@test", True)
