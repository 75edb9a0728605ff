"""The broker loses messages: before a run starts, and between two attempts.

Redis loses everything, bindings included (FLUSHALL). On RabbitMQ the queue is purged.
"""

from itertools import pairwise

import pytest
import redis
from kombu import Connection

from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from tests.support.waiting import wait_until


@pytest.fixture
def lose_messages(fault_services):
    """Return a function that makes the broker lose its messages."""

    def flush():
        with redis.Redis.from_url(fault_services.broker_url) as client:
            client.flushall()

    def purge():
        with Connection(fault_services.broker_url) as connection:
            connection.default_channel.queue_purge("celery")

    return flush if fault_services.combination.broker == "redis" else purge


@pytest.fixture
def queue_length(fault_services):
    """Return a function that returns the number of messages in the queue."""

    def length():
        with Connection(fault_services.broker_url) as connection:
            declared = connection.default_channel.queue_declare("celery", passive=True)
            return declared.message_count

    return length


def test_runs_whose_messages_were_lost_start_once(
    fault_site, workload, lose_messages, queue_length
):
    fault_site.config["dynbeat_resend_after"] = 3
    beat = fault_site.beat().wait_for_log("beat started")
    workload.create_one_offs(50, first_in=0.5)
    wait_until(lambda: fault_site.count_runs(Run.status == Status.SENT) == 50, within=15)

    with workload.fault():
        assert queue_length() == 50
        lose_messages()
        fault_site.worker(pool="threads").wait_for_log("ready.")

    workload.verify("the broker loses messages between publish and start")
    assert beat.exit_status is None


def test_a_queue_without_a_worker_gets_copies_at_growing_intervals(
    fault_site, workload, queue_length
):
    fault_site.config["dynbeat_resend_after"] = 1
    fault_site.beat().wait_for_log("beat started")
    workload.create_one_offs(1, first_in=0.5)

    published = wait_until(lambda: publishes(fault_site, 5), within=30)

    gaps = [later - earlier for earlier, later in pairwise(published)]
    waited = [at - published[0] for at in published]
    # Each gap is as long as the time since the first message; the first gap is resend_after.
    assert all(gap >= max(1, before) * 0.95 for gap, before in zip(gaps, waited, strict=False))
    assert queue_length() == 5
    fault_site.worker(pool="threads")
    times = ", ".join(f"{at:.1f}" for at in waited)
    workload.verify(f"no worker: resend_after 1 s, published at {times} s")


def test_a_retry_that_the_broker_lost_is_sent_again(fault_site, workload, lose_messages):
    fault_site.config["dynbeat_resend_after"] = 2
    beat = fault_site.beat().wait_for_log("beat started")
    worker = fault_site.worker(pool="threads").wait_for_log("ready.")
    workload.create_one_offs(5, first_in=0.5, task="probe.retry", kwargs={"countdown": 4})
    wait_until(lambda: fault_site.count_runs(Run.status == Status.RETRYING) == 5, within=20)

    with workload.fault():
        worker.kill()
        lose_messages()
        fault_site.worker(pool="threads").wait_for_log("ready.")

    workload.verify("the broker loses messages between two attempts, worker killed", extra_starts=5)
    retries = sorted((start["run_id"], start["retries"]) for start in scheduled_starts(fault_site))
    assert retries == sorted((run.id, n) for run in fault_site.all_runs() for n in (0, 1))
    assert beat.exit_status is None


def scheduled_starts(site):
    """Return the starts of scheduled tasks."""
    return [
        start for start in site.event_log.starts() if "dynbeat_schedule" in (start["headers"] or {})
    ]


def publishes(site, number):
    """Return the instants of the first ``number`` messages; None if fewer were published."""
    instants = [entry["at"] for entry in site.event_log.read("before_publish")]
    return instants[:number] if len(instants) >= number else None
