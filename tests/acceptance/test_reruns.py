"""A real beat and worker run the failed runs of a repaired task again."""

from datetime import datetime, timedelta

import pytest

from celery_dynbeat import Every
from tests.support.waiting import wait_until

FAILED = 3


@pytest.fixture
def installation(any_site):
    """Give an installation in which each run of schedule ``tick`` has failed."""
    any_site.mine.create("tick", task="probe.fail", trigger=Every(timedelta(seconds=1)))
    any_site.beat()
    any_site.worker()
    wait_until(
        lambda: len(any_site.mine.runs("tick", status="failed")) >= FAILED,
        within=30,
        message="the runs did not fail",
    )
    # Only reruns follow.
    any_site.mine.update("tick", trigger=Every(timedelta(days=100)))
    wait_until(lambda: has_no_unfinished_run(any_site), within=20)
    # The worker's clock may be some milliseconds ahead.
    ended_at = max(run.finished_at for run in any_site.runs("tick"))
    wait_until(lambda: any_site.dynbeat.context.clock.now() > ended_at, within=5)
    return any_site


def has_no_unfinished_run(made):
    return all(run.finished_at is not None for run in made.runs("tick"))


def test_each_failed_run_of_a_repaired_task_runs_once_with_its_fire_time(installation):
    mine = installation.mine
    failed = {run.id: run.scheduled_for for run in mine.runs("tick", status="failed")}
    assert mine.get("tick").failing_since is not None
    # The repaired task.
    mine.update("tick", task="probe.current", kwargs={"is_subtask": True})

    request = mine.rerun_many(since=min(failed.values()))
    again = mine.rerun_many(since=min(failed.values()))
    assert request.total == len(failed)
    wait_until(
        lambda: all(mine.get_request(each.id).finished_at for each in (request, again)),
        within=30,
        message="the requests did not end",
    )
    wait_until(lambda: has_no_unfinished_run(installation), within=20)

    reruns = mine.runs("tick", origin="rerun", limit=100)
    assert {run.rerun_of: run.scheduled_for for run in reruns} == failed
    assert {run.status for run in reruns} == {"succeeded"}
    assert len(reruns) == len(failed)
    bodies = [each["run"] for each in installation.event_log.read("current")]
    assert sorted(body["run_id"] for body in bodies) == sorted(run.id for run in reruns)
    seen = {body["run_id"]: datetime.fromisoformat(body["scheduled_for"]) for body in bodies}
    assert seen == {run.id: failed[run.rerun_of] for run in reruns}
    assert {body["origin"] for body in bodies} == {"rerun"}
    wait_until(lambda: mine.get("tick").failing_since is None, within=10)
