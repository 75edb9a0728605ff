"""Pool processes that are recycled while the database is unreachable."""

import pytest

from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from tests.support.processes import children_of
from tests.support.waiting import wait_until


def shrink(site):
    site.app.control.pool_shrink(1, reply=True, timeout=5)


def do_nothing(site):
    del site


#: The options of the worker, and a function that ends pool processes without a task.
RECYCLING = {
    "max_tasks": (("--max-tasks-per-child", "1"), do_nothing),
    "max_memory": (("--max-memory-per-child", "1"), do_nothing),
    "shrink": ((), shrink),
}


@pytest.mark.parametrize("kind", RECYCLING)
def test_an_outcome_of_a_recycled_pool_process_is_written_by_its_worker(
    fault_site, workload, database_server, kind
):
    options, recycle = RECYCLING[kind]
    gate = fault_site.gate("held")
    fault_site.beat()
    worker = fault_site.worker(*options).wait_for_log("ready.")
    workload.create_one_offs(2, first_in=1, task="probe.hold", kwargs={"gate": str(gate)})
    workload.wait_for_starts(2)
    children = set(children_of(worker.pid))
    ids = [start["run_id"] for start in fault_site.event_log.starts()]

    with workload.fault():
        database_server.stop()
        gate.touch()
        worker.wait_for_log("buffered until the database is reachable")
        recycle(fault_site)
        ended = 1 if kind == "shrink" else 2
        wait_until(lambda: len(children - set(children_of(worker.pid))) >= ended, within=30)
        database_server.start()

    wait_until(
        lambda: fault_site.count_runs(Run.id.in_(ids), Run.status == Status.SUCCEEDED) == 2,
        within=45,
        message=worker.report(),
    )
    workload.verify(f"database unreachable, pool process recycled by {kind}")
    assert worker.exit_status is None
    assert "outcomes of runs dropped" not in worker.text
