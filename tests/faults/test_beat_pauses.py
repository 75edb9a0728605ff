"""Beats that receive SIGTERM during a pass, and beats that are suspended for long."""

import os
import signal

import pytest

from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from tests.support.failpoints import GATE_VARIABLE, HOLD_VARIABLE, HOLDING, held_marker
from tests.support.killed_beats import suspended
from tests.support.waiting import wait_until

BATCH = 20
OWNED = 4


@pytest.fixture
def held_beat(fault_site):
    """Return a function that starts a beat, which waits at a point of its next pass for a gate."""

    def start(point):
        gate = fault_site.gate("pass")
        beat = fault_site.beat(
            scheduler=HOLDING, **{HOLD_VARIABLE: point, GATE_VARIABLE: str(gate)}
        )
        return beat.wait_for_log("beat started"), gate

    return start


def node_of(fault_site, beat):
    """Return the node row of a beat."""
    return next(node for node in fault_site.nodes("beat") if node.pid == beat.pid)


@pytest.mark.parametrize("point", ["recorded", "committed", "published"])
def test_a_beat_that_gets_sigterm_in_a_pass_exits_cleanly_and_loses_no_run(
    fault_site, workload, held_beat, point
):
    fault_site.worker(pool="threads").wait_for_log("ready.")
    beat, gate = held_beat(point)
    workload.create_one_offs(BATCH, first_in=1.5)
    wait_until(held_marker(gate).exists, within=20)

    with workload.fault():
        os.kill(beat.pid, signal.SIGTERM)
        assert beat.wait() == 0
        fault_site.beat()

    workload.verify(f"SIGTERM of beat at {point!r}")
    assert node_of(fault_site, beat).stopped_at is not None


def test_after_sigterm_under_load_another_beat_sends_the_remaining_runs(fault_site, workload):
    fault_site.worker(pool="threads").wait_for_log("ready.")
    beats = [fault_site.beat() for _ in range(2)]
    for beat in beats:
        beat.wait_for_log("beat started")
    workload.create_repeating(BATCH, seconds=5, first_in=1.5)
    workload.wait_for_starts(BATCH)

    with workload.fault():
        os.kill(beats[0].pid, signal.SIGTERM)
        assert beats[0].wait() == 0

    workload.verify("SIGTERM of one of two beats under load")
    assert node_of(fault_site, beats[0]).stopped_at is not None


@pytest.mark.parametrize("point", ["committed", "published"])
def test_a_beat_that_is_suspended_for_longer_than_all_timeouts_duplicates_no_run(
    fault_site, workload, held_beat, point
):
    task_gate = fault_site.gate("tasks")
    worker = fault_site.worker("-c", str(OWNED + 2), pool="threads").wait_for_log("ready.")
    suspended_beat, gate = held_beat(point)
    hold = {"task": "probe.hold", "kwargs": {"gate": str(task_gate)}}
    workload.create_one_offs(OWNED, first_in=1.5, **hold)
    wait_until(held_marker(gate).exists, within=20)
    # The suspended beat has claimed the first runs. The other beat claims these.
    workload.create_one_offs(BATCH, first_in=1.5)

    with suspended(suspended_beat):
        gate.touch()
        fault_site.beat()
        wait_until_all_have_started(fault_site)
        wait_until_silent(fault_site, suspended_beat)
    with workload.fault():
        suspended_beat.wait_for_log(f"runs dispatched {OWNED} of {OWNED}")
    # No status went back: running runs still run, and ended runs have ended.
    assert fault_site.count_runs(Run.status == Status.RUNNING, Run.attempt == 1) == OWNED
    assert fault_site.count_runs(Run.status == Status.SUCCEEDED) == BATCH
    task_gate.touch()

    workload.verify(f"beat stopped at {point!r} for longer than all timeouts, then woken")
    # At 'published' its messages were sent before the suspension, and no beat sent them again.
    refused = worker.text.count(" refused: ")
    assert refused == (OWNED if point == "committed" else 0)


def wait_until_all_have_started(fault_site):
    """Return when the held runs are running and all others have ended."""
    wait_until(
        lambda: (
            fault_site.count_runs(Run.status == Status.RUNNING) == OWNED
            and fault_site.count_runs(Run.status == Status.SUCCEEDED) == BATCH
        ),
        within=30,
        message="not all started",
    )


def wait_until_silent(fault_site, beat):
    """Return when ``beat`` has been silent for longer than dynbeat_node_timeout."""
    settings = fault_site.dynbeat.context.settings
    now = fault_site.dynbeat.context.clock.now
    wait_until(lambda: now() - node_of(fault_site, beat).seen_at > settings.node_timeout, within=30)
