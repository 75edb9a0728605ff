"""The broker forgets what it was given: before a run starts, and between two attempts of it.

Redis forgets everything, bindings too (FLUSHALL); a queue of RabbitMQ is purged.
"""

from itertools import pairwise

import pytest
import redis
from kombu import Connection

from celery_dynbeat.common.run_states import Status
from celery_dynbeat.db.models import Run
from tests.support.waiting import wait_until


@pytest.fixture
def forget(fault_services):
    """Give what makes the broker forget."""

    def flush():
        with redis.Redis.from_url(fault_services.broker_url) as client:
            client.flushall()

    def purge():
        with Connection(fault_services.broker_url) as connection:
            connection.default_channel.queue_purge("celery")

    return flush if fault_services.combination.broker == "redis" else purge


@pytest.fixture
def queue_length(fault_services):
    """Give what tells how many messages wait."""

    def length():
        with Connection(fault_services.broker_url) as connection:
            declared = connection.default_channel.queue_declare("celery", passive=True)
            return declared.message_count

    return length


def test_what_was_sent_and_forgotten_starts_once(fault_site, workload, forget, queue_length):
    fault_site.config["dynbeat_resend_after"] = 3
    beat = fault_site.beat().wait_for_log("beat started")
    workload.create_one_offs(50, first_in=0.5)
    wait_until(lambda: fault_site.count_runs(Run.status == Status.SENT) == 50, within=15)

    with workload.fault():
        assert queue_length() == 50
        forget()
        fault_site.worker(pool="threads").wait_for_log("ready.")

    workload.verify("the broker forgets between publish and start")
    assert beat.exit_status is None


def test_a_queue_that_nobody_serves_gets_ever_fewer_copies(fault_site, workload, queue_length):
    fault_site.config["dynbeat_resend_after"] = 1
    fault_site.beat().wait_for_log("beat started")
    workload.create_one_offs(1, first_in=0.5)

    published = wait_until(lambda: publishes(fault_site, 5), within=30)

    gaps = [later - earlier for earlier, later in pairwise(published)]
    waited = [at - published[0] for at in published]
    # Each pause is as long as all that went before it, and the first is resend_after.
    assert all(gap >= max(1, before) * 0.95 for gap, before in zip(gaps, waited, strict=False))
    assert queue_length() == 5
    fault_site.worker(pool="threads")
    times = ", ".join(f"{at:.1f}" for at in waited)
    workload.verify(f"no worker: resend_after 1 s, published at {times} s")


def test_a_retry_that_the_broker_forgot_is_sent_again(fault_site, workload, forget):
    fault_site.config["dynbeat_resend_after"] = 2
    beat = fault_site.beat().wait_for_log("beat started")
    worker = fault_site.worker(pool="threads").wait_for_log("ready.")
    workload.create_one_offs(5, first_in=0.5, task="probe.retry", kwargs={"countdown": 4})
    wait_until(lambda: fault_site.count_runs(Run.status == Status.RETRYING) == 5, within=20)

    with workload.fault():
        worker.kill()
        forget()
        fault_site.worker(pool="threads").wait_for_log("ready.")

    workload.verify("the broker forgets between two attempts, worker killed", extra_starts=5)
    retries = sorted((start["run_id"], start["retries"]) for start in ledger_starts(fault_site))
    assert retries == sorted((run.id, n) for run in fault_site.all_runs() for n in (0, 1))
    assert beat.exit_status is None


def ledger_starts(site):
    """Return the starts of scheduled tasks."""
    return [one for one in site.event_log.starts() if "dynbeat_schedule" in (one["headers"] or {})]


def publishes(site, number):
    """Return when the first messages were published, as soon as there are so many."""
    instants = [entry["at"] for entry in site.event_log.read("before_publish")]
    return instants[:number] if len(instants) >= number else None
