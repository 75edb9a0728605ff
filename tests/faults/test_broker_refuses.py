"""Brokers that accept no message: an alarm or a missing permission of RabbitMQ, a full Redis.

Also a task router of the application that raises.
"""

import json
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from tests.support.failing_router import ROUTER_VARIABLE
from tests.support.fault_summary import SUMMARY_PROPERTY
from tests.support.servers.machine import find_program
from tests.support.waiting import wait_until

RESOURCE = "{{resource_limit, memory, node()}, []}"


@pytest.fixture
def alarm(broker_server):
    """Return a context manager that raises the memory alarm of RabbitMQ."""
    rabbitmqctl = find_program(
        "rabbitmqctl", package="rabbitmq-server", folders=[Path("/usr/lib/rabbitmq/bin")]
    )

    def evaluate(expression):
        command = [rabbitmqctl, "eval", expression]
        process = broker_server.launch(command, environment=broker_server.environment())
        assert process.wait(within=30) == 0, broker_server.log_tail()

    @contextmanager
    def raised():
        evaluate(f"rabbit_alarm:set_alarm({RESOURCE}).")
        try:
            yield
        finally:
            evaluate("rabbit_alarm:clear_alarm({resource_limit, memory, node()}).")

    return raised


def error_of_beat(site, beat):
    return next(node.error for node in site.nodes("beat") if node.pid == beat.pid)


# About 15 s: rabbitmqctl starts an Erlang VM twice.
@pytest.mark.combination(broker="rabbitmq")
def test_an_alarm_of_rabbitmq_delays_runs_and_loses_none(
    fault_site, workload, alarm, record_property
):
    first = fault_site.beat().wait_for_log("beat started")
    fault_site.worker(pool="threads").wait_for_log("ready.")
    workload.create_one_offs(5, first_in=0.5)
    workload.wait_for_starts(5)

    with workload.fault(), alarm():
        workload.create_one_offs(500, first_in=0.5)
        first.wait_for_log("has blocked the connection")
        assert "has blocked the connection" in error_of_beat(fault_site, first)
        claimed = fault_site.count_runs()
        workload.create_one_offs(20, first_in=0.5)
        first.wait_for_log("has blocked the connection", times=6)
        assert fault_site.count_runs() == claimed
        sigterm_at = time.monotonic()
        first.send_sigterm()
        assert first.wait() == 0
        ended_in = time.monotonic() - sigterm_at
        second = fault_site.beat().wait_for_log("has blocked the connection")

    second.wait_for_log("beat works again")
    workload.verify("memory alarm of RabbitMQ, SIGTERM during the alarm")
    record_property(SUMMARY_PROPERTY, f"a blocked beat exited {ended_in:.1f} s after SIGTERM")


# No worker runs during the fault: a worker exits when a full Redis rejects its acknowledgement.
@pytest.mark.combination(broker="redis")
def test_a_full_redis_delays_runs_and_loses_none(fault_site, workload, fault_services):
    beats = [fault_site.beat().wait_for_log("beat started") for _ in range(2)]
    with redis.Redis.from_url(fault_services.broker_url) as client, workload.fault():
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1mb")
        try:
            workload.create_repeating(20, seconds=3, first_in=0.5)
            wait_until(lambda: any("pass failed" in beat.text for beat in beats), within=20)
            wait_until(lambda: fault_site.count_runs(Run.status == Status.PENDING), within=10)
            assert not fault_site.count_runs(Run.status == Status.SENT)
        finally:
            client.config_set("maxmemory", 0)

    fault_site.worker(pool="threads")
    workload.verify("Redis full (maxmemory, noeviction)")
    assert [beat.exit_status for beat in beats] == [None, None]


def status(site):
    """Return the exit status of ``dynbeat status --json`` and its output."""
    process = site.run("dynbeat", "status", "--json", name="status")
    exit_status = process.wait(within=40)
    return exit_status, json.loads(process.text.splitlines()[-1])


def codes(report):
    return {problem["code"] for problem in report["problems"]}


def no_schedule_is_quarantined(site):
    _, report = status(site)
    return report["schedules"]["quarantined"]["count"] == 0


def test_a_router_that_raises_delays_runs_and_loses_none(fault_site, workload):
    fault_site.config["task_routes"] = "tests.support.failing_router.raising"
    gate = fault_site.gate("router")
    variables = {ROUTER_VARIABLE: str(gate)}
    beat = fault_site.beat(**variables).wait_for_log("beat started")
    fault_site.worker(pool="threads", **variables).wait_for_log("ready.")
    workload.create_repeating(9, seconds=12, first_in=0.5)
    workload.wait_for_starts(9)

    with workload.fault():
        gate.touch()
        beat.wait_for_log("publishing fails for task 'probe.record': LookupError")
        _, report = status(fault_site)
        assert "publish_failed" in codes(report)
        gate.unlink()

    workload.verify("a router that raises")
    assert no_schedule_is_quarantined(fault_site)
