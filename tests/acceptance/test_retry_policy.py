"""A real beat and worker start failed runs again by the retry policy of their schedule."""

from celery_dynbeat import Retry
from tests.support.waiting import wait_until


def test_a_run_fails_for_good_after_its_retries(running):
    running.create_once("fail", retry=Retry(max_retries=2, backoff=1, factor=1))

    between = running.wait_for_run("fail", "retrying")
    after = running.wait_for_run("fail", "failed")

    assert between.error.startswith("ValueError")
    assert between.retry_at is not None
    assert (after.id, after.attempt, after.retries) == (between.id, 3, 2)
    assert [start["retries"] for start in running.event_log.starts(after.id)] == [0, 1, 2]
    assert len(running.runs("fail")) == 1
    wait_until(lambda: running.mine.get("fail").failing_since == after.finished_at, within=10)


def test_a_run_whose_pool_process_is_killed_starts_again(running):
    running.create_once("crash", retry=Retry(max_retries=1, backoff=1))

    # Celery waits 10 s for the result of a process that died.
    run = running.wait_for_run("crash", "succeeded", within=60)

    assert (run.attempt, run.error) == (2, None)
    assert len(running.event_log.starts(run.id)) == 2
