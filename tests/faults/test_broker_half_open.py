"""The broker stops answering while its connections stay open."""

import time

import pytest

from tests.support.change_latency import change_latency
from tests.support.failpoints import GATE_VARIABLE, HOLD_VARIABLE, HOLDING, held_marker
from tests.support.fault_summary import SUMMARY_PROPERTY
from tests.support.waiting import wait_until

RESPONSE_TIMEOUT = 2
#: Until the first pass fails: the response timeout, plus time for a busy machine.
NOTICED_WITHIN = RESPONSE_TIMEOUT + 8
POLL_INTERVAL = 15
#: RabbitMQ's heartbeats are 10 s apart, and three may be missed.
GIVEN_UP_WITHIN = 40


@pytest.fixture
def proxy(fault_site, fault_services, proxied):
    """Return the proxy between beat and its broker. The worker connects directly."""
    fault_site.constants["celery_dynbeat.broker.connection.RESPONSE_TIMEOUT"] = RESPONSE_TIMEOUT
    fault_site.constants["celery_dynbeat.broker.connection.CONNECT_TIMEOUT"] = RESPONSE_TIMEOUT
    fault_site.worker(pool="threads").wait_for_log("ready.")
    made = proxied(fault_services.broker_server)
    fault_site.config["broker_url"] = made.through(fault_services.broker_url)
    return made


def wait_for_timeouts(beat, began):
    """Wait until an answer and then a connection time out; return the seconds of the first."""
    beat.wait_for_log("pass failed")
    noticed = time.monotonic() - began
    assert noticed < NOTICED_WITHIN
    beat.wait_for_log("pass failed", times=2)
    return noticed


def stops_answering_while_idle(fault_site, workload, proxy):
    beat = fault_site.beat().wait_for_log("beat started")
    workload.create_one_offs(5, first_in=0.5)
    workload.wait_for_starts(5)

    with workload.fault():
        proxy.drop_silently()
        workload.create_one_offs(50, first_in=0.5)
        noticed = wait_for_timeouts(beat, time.monotonic())
        proxy.pass_on()

    workload.verify(f"broker half-open while beat is idle (noticed in {noticed:.1f} s)")
    assert beat.exit_status is None


def stops_answering_in_a_pass(fault_site, workload, proxy):
    gate = fault_site.gate("pass")
    holding = {HOLD_VARIABLE: "committed", GATE_VARIABLE: str(gate)}
    beat = fault_site.beat(scheduler=HOLDING, **holding).wait_for_log("beat started")
    workload.create_one_offs(50, first_in=0.5)
    wait_until(held_marker(gate).exists, within=15)

    with workload.fault():
        proxy.drop_silently()
        gate.touch()
        noticed = wait_for_timeouts(beat, time.monotonic())
        proxy.pass_on()

    workload.verify(f"broker half-open between commit and publish (noticed in {noticed:.1f} s)")
    assert beat.exit_status is None


def hangs(fault_site, workload, proxy, broker_server):
    """Freeze the server, which also serves the worker, and then stop beat by SIGTERM."""
    del proxy
    beat = fault_site.beat().wait_for_log("beat started")
    workload.create_one_offs(5, first_in=0.5)
    workload.wait_for_starts(5)

    with workload.fault():
        broker_server.freeze()
        workload.create_one_offs(50, first_in=0.5)
        # 10 s for an answer, 10 s for a new connection, and then both again.
        beat.wait_for_log("pass failed", times=2, within=60)
        sigterm_at = time.monotonic()
        beat.send_sigterm()
        assert beat.wait() == 0
        ended_in = time.monotonic() - sigterm_at
        broker_server.thaw()
        fault_site.beat()

    workload.verify(f"broker frozen (a beat ended {ended_in:.1f} s after SIGTERM)")


def stops_notifications(fault_site, proxy, record_property):
    """Silence the connection that receives notifications; no pass uses that connection."""
    settings = {"dynbeat_notifier": "broker", "dynbeat_poll_interval": POLL_INTERVAL}
    fault_site.config.update(settings)
    fault_site.app.conf.update(settings)
    fault_site.constants["celery_dynbeat.notify.PING_INTERVAL"] = 1.0
    beat = fault_site.beat().wait_for_log("beat started")
    wait_until(lambda: change_latency(fault_site, "warm-up") < 1, within=60)

    before = change_latency(fault_site, "before")
    began = time.monotonic()
    proxy.drop_silently()
    beat.wait_for_log("listener lost the broker", within=GIVEN_UP_WITHIN)
    noticed = time.monotonic() - began
    proxy.pass_on()
    wait_until(lambda: change_latency(fault_site, "after") < 1, within=60)

    assert before < 1
    record_property(
        SUMMARY_PROPERTY, f"fanout half-open: noticed in {noticed:.1f} s, then notified again"
    )


@pytest.mark.combination(broker="redis")
def test_the_listener_reconnects_when_redis_stops_answering(fault_site, proxy, record_property):
    stops_notifications(fault_site, proxy, record_property)


@pytest.mark.combination(broker="rabbitmq")
def test_the_listener_reconnects_when_rabbitmq_stops_answering(fault_site, proxy, record_property):
    stops_notifications(fault_site, proxy, record_property)


@pytest.mark.combination(broker="redis")
def test_an_idle_beat_reconnects_when_redis_stops_answering(fault_site, workload, proxy):
    stops_answering_while_idle(fault_site, workload, proxy)


@pytest.mark.combination(broker="rabbitmq")
def test_an_idle_beat_reconnects_when_rabbitmq_stops_answering(fault_site, workload, proxy):
    stops_answering_while_idle(fault_site, workload, proxy)


@pytest.mark.combination(broker="redis")
def test_a_pass_reconnects_when_redis_stops_answering(fault_site, workload, proxy):
    stops_answering_in_a_pass(fault_site, workload, proxy)


@pytest.mark.combination(broker="rabbitmq")
def test_a_pass_reconnects_when_rabbitmq_stops_answering(fault_site, workload, proxy):
    stops_answering_in_a_pass(fault_site, workload, proxy)


@pytest.mark.combination(broker="redis")
def test_no_run_is_lost_while_redis_hangs(fault_site, workload, proxy, broker_server):
    hangs(fault_site, workload, proxy, broker_server)


@pytest.mark.combination(broker="rabbitmq")
def test_no_run_is_lost_while_rabbitmq_hangs(fault_site, workload, proxy, broker_server):
    hangs(fault_site, workload, proxy, broker_server)
