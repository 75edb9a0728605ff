"""A cancel prevents a new attempt, and a manual run replaces no scheduled run."""

from datetime import timedelta

import pytest

from tests.support.applications import MINUTELY, START
from tests.support.simulated_cluster import SimulatedCluster

MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize("cancel", ["pause", "delete"])
def test_a_run_that_is_lost_after_a_cancel_is_not_sent_again(
    dynbeat, mine, clock, beat, sent, cancel
):
    mine.create("n", task="t", trigger=MINUTELY, on_lost="rerun", max_runs=1)
    cluster = SimulatedCluster(dynbeat)
    cluster.start_worker("w1")
    clock.advance(MINUTE)
    beat.run_until_idle()
    cluster.enqueue(sent)
    cluster.deliver(cluster.queue[0], "w1")

    getattr(mine, cancel)("n")
    cluster.kill_worker("w1", redelivered=False)
    clock.advance(2 * MINUTE)
    beat.run_until_idle()

    assert [run.status for run in mine.runs("n")] == ["lost"]
    assert len(sent) == 1


def test_a_manual_run_at_the_instant_of_a_fire_time_does_not_replace_its_run(
    mine, clock, beat, sent
):
    mine.create("n", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)

    mine.run_now("n")
    beat.run_until_idle()

    assert sorted(run.origin for run in mine.runs()) == ["manual", "schedule"]
    assert START + MINUTE in {run.fire_at for run in sent}
    assert len(sent) == 2
