"""Warm shutdown of a worker that executes a task."""

import os
import signal

import pytest


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_running_task_succeeds_before_its_worker_stops(redis_site, pool):
    gate = redis_site.gate("hold")
    redis_site.beat().wait_for_log("beat started")
    worker = redis_site.worker("-l", "DEBUG", pool=pool).wait_for_log("ready.")
    redis_site.create_once("hold", kwargs={"gate": str(gate)})
    redis_site.wait_for_run("hold", "running")

    os.kill(worker.pid, signal.SIGTERM)
    # The pool stops late. If the gate opened earlier, the test would prove nothing.
    worker.wait_for_log("Stopping Pool...")
    gate.touch()

    assert worker.wait() == 0
    (run,) = redis_site.runs("hold")
    assert (run.status, run.attempt) == ("succeeded", 1)
    (node,) = redis_site.nodes("worker")
    assert node.stopped_at >= run.finished_at
