"""Several beats share a burst, and a beat is killed."""

from collections import Counter
from datetime import UTC, datetime, timedelta

from celery_dynbeat import Once
from celery_dynbeat.db.models import Run
from tests.support.waiting import wait_until

BURST, BATCH_SIZE = 800, 40


def create_burst(site, count, *, at):
    site.dynbeat.schedules.create_many(
        [
            {"owner": f"user:{n}", "name": "burst", "task": "probe.record", "trigger": Once(at)}
            for n in range(count)
        ],
    )


def each_started_once(site, count, *, within):
    finished = Run.status == "succeeded"
    wait_until(lambda: site.count_runs(finished) == count, within=within)
    starts = Counter(start["run_id"] for start in site.event_log.starts())
    assert len(starts) == count
    assert set(starts.values()) == {1}
    assert site.count_runs() == count


def test_several_beats_start_each_run_of_a_burst_once(redis_site):
    redis_site.constants["celery_dynbeat.beat.refused.BATCH_SIZE"] = BATCH_SIZE
    running = [redis_site.beat() for _ in range(3)]
    for beat in running:
        beat.wait_for_log("beat started")
    create_burst(redis_site, BURST, at=datetime.now(UTC) + timedelta(seconds=5))
    redis_site.worker(pool="threads")

    each_started_once(redis_site, BURST, within=60)

    assert sum("runs dispatched" in beat.text for beat in running) >= 2
