"""Workers that are killed while they execute runs: how and when the runs' status changes."""

import os
import signal
from datetime import UTC, datetime

import psutil
import pytest
from sqlalchemy import make_url

from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from tests.support.fault_summary import SUMMARY_PROPERTY
from tests.support.final_statuses import verify_statuses
from tests.support.sites import POOLS
from tests.support.waiting import wait_until

ANY_POOL = pytest.mark.parametrize("pool", POOLS)
NOTED = "redelivered while it is running"
REFUSED = " refused: "
#: Runs that end while others are held.
BYSTANDERS = 20


def hold(fault_site, workload, number, *, task="probe.hold", **fields):
    """Start ``number`` runs; return the gate that lets them end."""
    gate = fault_site.gate("hold")
    workload.create_one_offs(number, first_in=1.5, task=task, kwargs={"gate": str(gate)}, **fields)
    wait_until(
        lambda: fault_site.count_runs(Run.status == Status.RUNNING) == number,
        within=30,
        message="not held",
    )
    workload.wait_for_starts(number)
    return gate


@ANY_POOL
def test_runs_of_a_killed_worker_are_lost_soon_after_the_node_timeout(
    fault_site, workload, record_property, pool, combination, broker_server
):
    number = POOLS[pool]
    # A solo worker sends its acknowledgement to RabbitMQ after its task. So RabbitMQ redelivers the
    # message, and the guard refuses it.
    redelivered = (pool, combination.broker) == ("solo", "rabbitmq")
    fault_site.beat()
    killed = fault_site.worker(pool=pool, name="killed@test")
    gate = hold(fault_site, workload, number)
    if combination.broker == "rabbitmq" and not redelivered:
        # With a pool of threads, the next iteration of Celery's event loop sends them.
        vhost = make_url(fault_site.config["broker_url"]).database
        wait_until(lambda: not broker_server.unacknowledged(vhost), within=30)

    at = datetime.now(UTC)
    killed.kill()
    gate.touch()
    wait_until(lambda: fault_site.count_runs(Run.status == Status.LOST) == number, within=30)
    fault_site.worker(pool=pool, name="other@test")

    verify_statuses(
        workload, f"kill -9 of worker ({pool})", expected={"lost": number}, starts=number
    )
    ratios = [(run.finished_at - at).total_seconds() / 3 for run in fault_site.all_runs()]
    text = f"from {min(ratios):.2f} to {max(ratios):.2f} of dynbeat_node_timeout after the kill"
    record_property(SUMMARY_PROPERTY, f"kill -9 of worker ({pool}): lost {text}")
    # The last heartbeat is up to a third of the timeout older than the kill.
    assert min(ratios) > 0.6


def start_unacknowledged(fault_site, workload, worker, number):
    """Start ``number`` runs whose messages the main process of ``worker`` never acknowledges.

    The worker has a pool of ``number`` processes. The main process is stopped when this returns.
    Return the gate that lets the runs end.
    """
    gate = fault_site.gate("unacknowledged")
    main = psutil.Process(worker.pid)
    pool = main.children()
    assert len(pool) == number
    for process in pool:
        process.suspend()
    workload.create_one_offs(number, first_in=0.5, task="probe.hold", kwargs={"gate": str(gate)})
    worker.wait_for_log("received", times=number)
    # Its event loop has given the messages to the pool.
    assert fault_site.app.control.ping(destination=["killed@test"], timeout=10)
    main.suspend()
    for process in pool:
        process.resume()
    workload.wait_for_starts(number)
    return gate


def kill_before_the_acknowledgement(fault_site, workload, *, orphans):
    number = 8
    fault_site.beat()
    killed = fault_site.worker("-c", str(number), name="killed@test").wait_for_log("ready.")
    gate = start_unacknowledged(fault_site, workload, killed, number)

    if orphans:
        os.kill(killed.pid, signal.SIGKILL)
    else:
        killed.kill()
    other = fault_site.worker(name="other@test")
    other.wait_for_log(REFUSED, times=number)
    wait_until(lambda: fault_site.count_runs(Run.status == Status.LOST) == number, within=30)
    gate.touch()

    left = "the pool survives" if orphans else "the pool too"
    verify_statuses(
        workload,
        f"kill -9 of a main process before it acknowledges, {left}",
        expected={"lost": number},
        starts=number,
    )


KILLED_POOL = pytest.mark.parametrize("orphans", [False, True], ids=["pool-killed", "orphans"])


@KILLED_POOL
@pytest.mark.combination(broker="rabbitmq")
def test_no_run_that_rabbitmq_redelivers_unacknowledged_starts_again(fault_site, workload, orphans):
    kill_before_the_acknowledgement(fault_site, workload, orphans=orphans)


@KILLED_POOL
@pytest.mark.combination(broker="redis")
def test_no_run_that_redis_redelivers_unacknowledged_starts_again(fault_site, workload, orphans):
    fault_site.config["broker_transport_options"] = {
        "visibility_timeout": 2,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }
    kill_before_the_acknowledgement(fault_site, workload, orphans=orphans)


@ANY_POOL
def test_idempotent_runs_of_a_killed_worker_start_once_more(fault_site, workload, pool):
    number = POOLS[pool]
    fault_site.beat()
    killed = fault_site.worker(pool=pool, name="killed@test")
    gate = hold(fault_site, workload, number, on_lost="rerun")
    workload.create_one_offs(BYSTANDERS, first_in=1.5)

    with workload.fault():
        killed.kill()
        gate.touch()
        fault_site.worker(pool=pool, name="other@test")

    workload.verify(f"kill -9 of worker ({pool}), on_lost='rerun'", extra_starts=number)
    assert_second_attempts(fault_site, number)


def assert_second_attempts(fault_site, number):
    """Assert that ``number`` runs ended in their second attempt, the others in their first."""
    attempts = sorted(run.attempt for run in fault_site.all_runs())
    assert attempts == [1] * (len(attempts) - number) + [2] * number


@pytest.mark.combination(broker="rabbitmq")
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_runs_that_rabbitmq_redelivers_at_once_start_again_only_after_the_node_timeout(
    fault_site, workload, pool
):
    number = POOLS[pool]
    fault_site.beat()
    killed = fault_site.worker(pool=pool, name="killed@test")
    gate = hold(fault_site, workload, number, task="probe.hold_late")
    other = fault_site.worker(pool=pool, name="other@test").wait_for_log("ready.")
    workload.create_one_offs(BYSTANDERS, first_in=1.5)

    with workload.fault():
        killed.kill()
        other.wait_for_log(NOTED, times=number)
        assert workload.starts().total() <= number + BYSTANDERS
        gate.touch()

    workload.verify(f"kill -9 of worker ({pool}) with acks_late", extra_starts=number)
    assert_second_attempts(fault_site, number)


@pytest.mark.combination(broker="redis")
def test_runs_that_redis_redelivers_after_the_visibility_timeout_start_again(fault_site, workload):
    number = POOLS["threads"]
    fault_site.config["broker_transport_options"] = {
        "visibility_timeout": 2,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }
    fault_site.beat()
    killed = fault_site.worker(pool="threads", name="killed@test")
    gate = hold(fault_site, workload, number, task="probe.hold_late")

    with workload.fault():
        killed.kill()
        gate.touch()
        fault_site.worker(pool="threads", name="other@test")

    workload.verify("kill -9 of worker with acks_late, visibility_timeout", extra_starts=number)
    assert_second_attempts(fault_site, number)


@pytest.mark.combination(broker="redis")
def test_a_run_that_redis_redelivers_too_early_does_not_start_again(fault_site, workload):
    fault_site.config["broker_transport_options"] = {
        "visibility_timeout": 1,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }
    # Otherwise the busy worker would prefetch the copies, too.
    fault_site.config["worker_prefetch_multiplier"] = 1
    fault_site.beat()
    fault_site.worker("-c", "2", pool="threads", name="holds@test")
    gate = hold(fault_site, workload, 2, task="probe.hold_late")
    other = fault_site.worker(pool="threads", name="other@test")

    other.wait_for_log(NOTED, times=2)
    gate.touch()

    workload.verify("visibility_timeout shorter than the task")
