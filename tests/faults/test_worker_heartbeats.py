"""The row of a node shows whether its process is alive and whether it makes progress."""

from datetime import timedelta

import pytest

from tests.support.waiting import wait_until

LEEWAY = timedelta(seconds=0.5)


def node_of(fault_site, kind):
    """Return the row of the only beat or worker, as soon as it exists."""
    nodes = wait_until(lambda: fault_site.nodes(kind), within=30, message=f"no {kind}")
    (node,) = nodes
    return node


def wait_for_heartbeats(fault_site, kind, number=2):
    """Return the row after ``number`` more heartbeats."""
    for _ in range(number):
        before = node_of(fault_site, kind).seen_at
        wait_until(
            lambda before=before: node_of(fault_site, kind).seen_at > before,
            within=30,
            message=f"{kind} writes no heartbeat",
        )
    return node_of(fault_site, kind)


def wait_for_progress(fault_site, kind):
    """Return when the node has made new progress."""
    before = node_of(fault_site, kind).progressed_at
    wait_until(
        lambda: node_of(fault_site, kind).progressed_at not in {None, before},
        within=30,
        message=f"{kind} makes no progress",
    )


def assert_alive_without_progress(fault_site, kind):
    """Assert that heartbeats show no progress. The first one may still show some."""
    before = wait_for_heartbeats(fault_site, kind)
    after = wait_for_heartbeats(fault_site, kind)
    # Each heartbeat computes progressed_at again from two clocks, which differ a little.
    assert after.progressed_at - before.progressed_at < LEEWAY
    assert after.seen_at - before.seen_at > LEEWAY


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_worker_makes_progress_during_long_tasks(fault_site, workload, pool):
    gate = fault_site.gate("long")
    fault_site.beat()
    fault_site.worker(pool=pool).wait_for_log("ready.")
    workload.create_one_offs(1, task="probe.hold", kwargs={"gate": str(gate)})
    workload.wait_for_starts(1)

    wait_for_progress(fault_site, "worker")
    wait_for_progress(fault_site, "worker")

    gate.touch()
    workload.verify(f"a task longer than dynbeat_node_timeout ({pool})")


@pytest.mark.combination(broker="redis")
def test_a_worker_whose_broker_hangs_is_alive_without_progress(fault_site, workload, broker_server):
    fault_site.beat()
    fault_site.worker().wait_for_log("ready.")
    wait_for_progress(fault_site, "worker")

    with workload.fault():
        broker_server.freeze()
        assert_alive_without_progress(fault_site, "worker")
        broker_server.thaw()

    wait_for_progress(fault_site, "worker")
    workload.create_one_offs(20)
    workload.verify("broker frozen: the worker is alive and makes no progress")


def test_the_row_of_beat_shows_an_unreachable_broker(fault_site, workload, broker_server):
    fault_site.beat()
    fault_site.worker().wait_for_log("ready.")
    wait_for_progress(fault_site, "beat")

    # A beat that has nothing to send does not notice that its broker is unreachable.
    workload.create_repeating(2, seconds=8)
    workload.wait_for_starts(2)

    with workload.fault():
        broker_server.kill()
        wait_until(lambda: node_of(fault_site, "beat").error, within=30, message="no error")
        assert_alive_without_progress(fault_site, "beat")
        broker_server.start()

    wait_until(lambda: node_of(fault_site, "beat").error is None, within=60, message="an error")
    wait_for_progress(fault_site, "beat")
    workload.verify("broker killed: the row of beat showed it until the broker was back")
