"""Beats that share the work, and beats that are killed in the middle of it."""

import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat import Once
from celery_dynbeat.db.models import Run
from tests.support.crashing import MARKER_VARIABLE, POINT_VARIABLE
from tests.support.waiting import wait_until

BURST = 2_000


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
    starts = Counter(start["run_id"] for start in site.diary.starts())
    assert len(starts) == count
    assert set(starts.values()) == {1}
    assert site.count_runs() == count


@pytest.mark.parametrize("beats", [2, 3])
def test_beats_that_share_a_burst_start_each_run_once(redis_site, beats):
    redis_site.config["dynbeat_batch_size"] = 100
    create_burst(redis_site, BURST, at=datetime.now(UTC) + timedelta(seconds=5))
    running = [redis_site.beat() for _ in range(beats)]
    for beat in running:
        beat.wait_for_log("beat started")
    redis_site.worker(pool="threads")

    each_started_once(redis_site, BURST, within=60)

    assert sum("runs dispatched" in beat.text for beat in running) >= 2


@pytest.mark.parametrize("point", ["recorded", "committed", "published"])
def test_a_beat_killed_in_its_pass_loses_and_doubles_nothing(redis_site, point):
    redis_site.config.update(dynbeat_dispatch_timeout=2, dynbeat_poll_interval=1)
    marker = redis_site.gate("crashed")
    create_burst(redis_site, 50, at=datetime.now(UTC) + timedelta(seconds=1))
    first = redis_site.beat(
        scheduler="tests.support.crashing:CrashingScheduler",
        **{POINT_VARIABLE: point, MARKER_VARIABLE: str(marker)},
    )
    wait_until(lambda: first.exit_status is not None, within=15, message=first.report())
    assert marker.exists()

    redis_site.beat()
    redis_site.worker()

    each_started_once(redis_site, 50, within=20)


def test_a_killed_beat_leaves_the_next_fire_times_to_another(redis_site):
    killed, left = redis_site.beat(), redis_site.beat()
    for beat in (killed, left):
        beat.wait_for_log("beat started")

    killed.kill()
    redis_site.mine.create("after", task="probe.record", trigger=Once.after(timedelta(seconds=0.5)))

    began = time.monotonic()
    redis_site.wait_for_run("after", "sent")
    assert time.monotonic() - began < 4
