"""Beats and workers that are killed while runs wait for the retry of their policy."""

from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from tests.support.final_statuses import verify_statuses
from tests.support.killed_beats import KilledBeats
from tests.support.waiting import wait_until

BATCH = 20
POLICY = {"max_retries": 2, "backoff": 6, "factor": 1}


def test_a_killed_beat_and_a_killed_worker_lose_and_duplicate_no_retry(fault_site, workload):
    killed_beats = KilledBeats(fault_site, "swept")
    worker = fault_site.worker(pool="threads").wait_for_log("ready.")
    killed_beats.start(1)
    workload.create_one_offs(BATCH, first_in=1, task="probe.fail_once", retry=POLICY)
    wait_until(
        lambda: fault_site.count_runs(Run.status == Status.RETRYING) == BATCH,
        within=30,
        message="not all runs wait for their retry",
    )

    worker.kill()
    # It has moved the due retries to pending, and has sent none.
    killed_beats.wait_for_kills(1)
    fault_site.beat()
    fault_site.worker(pool="threads", name="other@test")

    label = "kill -9 of beat at 'swept' and of the worker, with retries due"
    verify_statuses(workload, label, expected={"succeeded": BATCH}, starts=2 * BATCH)
    found = fault_site.all_runs()
    assert {(run.attempt, run.retries, run.worker) for run in found} == {(2, 1, "other@test")}
