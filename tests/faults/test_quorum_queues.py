"""Quorum queues of RabbitMQ: the same guarantees as on classic queues."""

import pytest

from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from tests.support.sites import POOLS
from tests.support.waiting import wait_until

pytestmark = pytest.mark.combination(broker="rabbitmq")
BYSTANDERS = 20
LATER_THAN_ANY_TEST = 3_600


@pytest.fixture(autouse=True)
def _quorum(fault_site):
    """Make the default queue a quorum queue, for the processes and for the test."""
    quorum = {"task_default_queue_type": "quorum", "task_default_exchange_type": "topic"}
    fault_site.config.update(quorum)
    fault_site.app.conf.update(quorum)


def test_a_killed_worker_of_a_quorum_queue_loses_and_duplicates_no_run(fault_site, workload):
    number = POOLS["prefork"]
    fault_site.beat()
    killed = fault_site.worker(name="killed@test")
    gate = fault_site.gate("hold")
    workload.create_one_offs(number, task="probe.hold_late", kwargs={"gate": str(gate)})
    workload.wait_for_starts(number)
    fault_site.worker(name="other@test").wait_for_log("ready.")
    workload.create_one_offs(BYSTANDERS)

    with workload.fault():
        killed.kill()
        gate.touch()

    workload.verify("kill -9 of worker, quorum queue, acks_late", extra_starts=number)


# About 20 s: RabbitMQ needs 6 s to start.
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_messages_that_a_quorum_queue_has_confirmed_survive_a_restart(
    fault_site, workload, broker_server, end
):
    # Beat resends no message: the broker must preserve the messages that it confirmed.
    fault_site.config["dynbeat_resend_after"] = LATER_THAN_ANY_TEST
    beat = fault_site.beat().wait_for_log("beat started")
    workload.create_repeating(20, seconds=5, first_in=0.5)
    # Not at the first run: RabbitMQ 3.10 loses the leader of a quorum queue if it is killed right
    # after the declaration of the queue.
    wait_until(lambda: fault_site.count_runs(Run.status == Status.SENT) >= 60, within=15)

    with workload.fault():
        getattr(broker_server, end)()
        beat.wait_for_log("pass failed")
        broker_server.start()
        fault_site.worker()

    workload.verify(f"RabbitMQ ended by {end}, and started, quorum queue")
    assert beat.exit_status is None
