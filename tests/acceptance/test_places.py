"""The limit on the runs of an owner, with a real worker, and beats that die."""

from itertools import pairwise

from celery_dynbeat import Once
from tests.support.sites import OWNER
from tests.support.waiting import wait_until


def test_a_killed_beat_neither_loses_nor_exceeds_the_place_of_an_owner(redis_site):
    redis_site.config["dynbeat_owner_limits"] = {OWNER: {"max_running": 1}}
    beat, worker = redis_site.beat(), redis_site.worker()
    worker.wait_for_log("ready.")
    start = redis_site.dynbeat.context.clock.now()
    redis_site.mine.create_many(
        [{"name": f"n{n}", "task": "probe.record", "trigger": Once(start)} for n in range(6)]
    )
    most = 0

    def ended():
        nonlocal beat, most
        found = redis_site.runs()
        most = max(most, sum(run.status in {"sent", "running"} for run in found))
        if most and beat is not None:
            beat.kill()
            beat = None
            redis_site.beat()
        return sum(run.status == "succeeded" for run in found) == 6

    wait_until(ended, within=60)

    assert most <= 1
    # One after the other: no run starts before the end of the previous run.
    runs = sorted(redis_site.runs(), key=lambda run: run.started_at)
    for earlier, later in pairwise(runs):
        assert earlier.finished_at <= later.started_at
    assert len(redis_site.event_log.starts()) == 6
