"""The broker falls silent: connections stay open, and nothing comes."""

import time

import pytest

from tests.support.change_latency import change_latency
from tests.support.failpoints import GATE_VARIABLE, HOLD_VARIABLE, HOLDING, held_marker
from tests.support.fault_summary import SUMMARY_PROPERTY
from tests.support.waiting import wait_until

RESPONSE_TIMEOUT = 2
#: What is found out before a pass fails: that the answer does not come, on a noisy machine.
FELT_WITHIN = RESPONSE_TIMEOUT + 8
POLL_INTERVAL = 15
#: RabbitMQ's heartbeats are 10 s apart, and three may be missed.
GIVEN_UP_WITHIN = 40


@pytest.fixture
def proxy(fault_site, fault_services, proxied):
    """Give the proxy between beat and its broker; the worker, started before, goes past it."""
    fault_site.constants["celery_dynbeat.broker.connection.RESPONSE_TIMEOUT"] = RESPONSE_TIMEOUT
    fault_site.constants["celery_dynbeat.broker.connection.CONNECT_TIMEOUT"] = RESPONSE_TIMEOUT
    fault_site.worker(pool="threads").wait_for_log("ready.")
    made = proxied(fault_services.broker_server)
    fault_site.config["broker_url"] = made.through(fault_services.broker_url)
    return made


def give_up_in_silence(beat, began):
    """Return after how many seconds beat has given up an answer, and a new connection."""
    beat.wait_for_log("pass failed")
    felt = time.monotonic() - began
    assert felt < FELT_WITHIN
    beat.wait_for_log("pass failed", times=2)
    return felt


def falls_silent_while_idle(fault_site, workload, proxy):
    beat = fault_site.beat().wait_for_log("beat started")
    workload.create_one_offs(5, first_in=0.5)
    workload.wait_for_starts(5)

    with workload.fault():
        proxy.drop_silently()
        workload.create_one_offs(50, first_in=0.5)
        felt = give_up_in_silence(beat, time.monotonic())
        proxy.pass_on()

    workload.verify(f"broker half-open while beat is idle (felt in {felt:.1f} s)")
    assert beat.exit_status is None


def falls_silent_in_a_pass(fault_site, workload, proxy):
    gate = fault_site.gate("pass")
    holding = {HOLD_VARIABLE: "committed", GATE_VARIABLE: str(gate)}
    beat = fault_site.beat(scheduler=HOLDING, **holding).wait_for_log("beat started")
    workload.create_one_offs(50, first_in=0.5)
    wait_until(held_marker(gate).exists, within=15)

    with workload.fault():
        proxy.drop_silently()
        gate.touch()
        felt = give_up_in_silence(beat, time.monotonic())
        proxy.pass_on()

    workload.verify(f"broker half-open between commit and publish (felt in {felt:.1f} s)")
    assert beat.exit_status is None


def hangs(fault_site, workload, proxy, broker_server):
    """Freeze the server, with the worker's connections too, and end beat by SIGTERM meanwhile."""
    del proxy
    beat = fault_site.beat().wait_for_log("beat started")
    workload.create_one_offs(5, first_in=0.5)
    workload.wait_for_starts(5)

    with workload.fault():
        broker_server.freeze()
        workload.create_one_offs(50, first_in=0.5)
        # Ten seconds for an answer, as long for that of a new connection, and the same once more.
        beat.wait_for_log("pass failed", times=2, within=60)
        asked_at = time.monotonic()
        beat.ask_to_end()
        assert beat.wait() == 0
        ended_in = time.monotonic() - asked_at
        broker_server.thaw()
        fault_site.beat()

    workload.verify(f"broker frozen (a beat ended {ended_in:.1f} s after SIGTERM)")


def loses_the_notices(fault_site, proxy, record_property):
    """Let the connection on which beat hears of changes fall silent, and no pass need it."""
    notices = {"dynbeat_notifier": "broker", "dynbeat_poll_interval": POLL_INTERVAL}
    fault_site.config.update(notices)
    fault_site.app.conf.update(notices)
    fault_site.constants["celery_dynbeat.notify.broker.PING_INTERVAL"] = 1.0
    beat = fault_site.beat().wait_for_log("beat started")
    wait_until(lambda: change_latency(fault_site, "warm-up") < 1, within=60)

    before = change_latency(fault_site, "before")
    began = time.monotonic()
    proxy.drop_silently()
    beat.wait_for_log("listener lost the broker", within=GIVEN_UP_WITHIN)
    felt = time.monotonic() - began
    proxy.pass_on()
    wait_until(lambda: change_latency(fault_site, "after") < 1, within=60)

    assert before < 1
    record_property(SUMMARY_PROPERTY, f"fanout half-open: felt in {felt:.1f} s, then heard again")


@pytest.mark.combination(broker="redis")
def test_a_redis_that_falls_silent_is_given_up_by_the_listener(fault_site, proxy, record_property):
    loses_the_notices(fault_site, proxy, record_property)


@pytest.mark.combination(broker="rabbitmq")
def test_a_rabbitmq_that_falls_silent_is_given_up_by_the_listener(
    fault_site, proxy, record_property
):
    loses_the_notices(fault_site, proxy, record_property)


@pytest.mark.combination(broker="redis")
def test_a_redis_that_falls_silent_is_given_up_while_idle(fault_site, workload, proxy):
    falls_silent_while_idle(fault_site, workload, proxy)


@pytest.mark.combination(broker="rabbitmq")
def test_a_rabbitmq_that_falls_silent_is_given_up_while_idle(fault_site, workload, proxy):
    falls_silent_while_idle(fault_site, workload, proxy)


@pytest.mark.combination(broker="redis")
def test_a_redis_that_falls_silent_is_given_up_in_a_pass(fault_site, workload, proxy):
    falls_silent_in_a_pass(fault_site, workload, proxy)


@pytest.mark.combination(broker="rabbitmq")
def test_a_rabbitmq_that_falls_silent_is_given_up_in_a_pass(fault_site, workload, proxy):
    falls_silent_in_a_pass(fault_site, workload, proxy)


@pytest.mark.combination(broker="redis")
def test_a_redis_that_hangs_is_outlived(fault_site, workload, proxy, broker_server):
    hangs(fault_site, workload, proxy, broker_server)


@pytest.mark.combination(broker="rabbitmq")
def test_a_rabbitmq_that_hangs_is_outlived(fault_site, workload, proxy, broker_server):
    hangs(fault_site, workload, proxy, broker_server)
