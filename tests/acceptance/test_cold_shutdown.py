"""A cold or soft shutdown of a worker interrupts a run. The run has not failed."""

import os
import signal

import pytest
from sqlalchemy import select

from celery_dynbeat.common.states import INTERRUPTED
from celery_dynbeat.db.models import RUNS
from tests.support.waiting import wait_until


@pytest.fixture
def stopped(redis_site):
    """Return a function that runs a task until its worker is told to end at once."""

    def stop(**fields):
        gate = redis_site.gate("hold")
        redis_site.beat().wait_for_log("beat started")
        worker = redis_site.worker().wait_for_log("ready.")
        redis_site.create_once("hold", kwargs={"gate": str(gate)}, **fields)
        redis_site.wait_for_run("hold", "running")
        os.kill(worker.pid, signal.SIGQUIT)
        worker.wait()
        return gate

    return stop


def corrections(site):
    """Return when beat looks at the ends of runs."""
    with site.dynbeat.context.database.engine.connect() as connection:
        return connection.execute(select(RUNS.c.retry_at)).scalars().all()


@pytest.mark.slow
@pytest.mark.parametrize("soft", [0, 1])
def test_a_run_that_a_shutdown_interrupts_is_lost_and_no_failure(redis_site, stopped, soft):
    redis_site.config.update(worker_soft_shutdown_timeout=soft, dynbeat_alert_urls=[])

    stopped(pause_after_failures=1)

    (run,) = redis_site.runs("hold")
    assert (run.status, run.attempt, run.error) == ("lost", 1, INTERRUPTED)
    # Beat has looked at the end of the run.
    wait_until(lambda: corrections(redis_site) == [None], within=30)
    assert redis_site.mine.get("hold").failing_since is None


@pytest.mark.slow
def test_an_interrupted_run_may_run_again_at_once(redis_site, stopped):
    # Beat would find the dead worker later.
    redis_site.config["dynbeat_node_timeout"] = 600
    gate = stopped(on_lost="rerun")
    gate.touch()

    redis_site.worker(name="other@test").wait_for_log("ready.")

    redis_site.wait_for_run("hold", "succeeded")
    (run,) = redis_site.runs("hold")
    assert run.attempt == 2
    assert INTERRUPTED in run.earlier_errors[0]
