"""The database stops answering while its connections stay open."""

import time

import pytest
from sqlalchemy import select

from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from tests.support.change_latency import change_latency, create_one_off, lag_of
from tests.support.fault_summary import SUMMARY_PROPERTY
from tests.support.killed_beats import suspended
from tests.support.lock_waits import wait_for_lock_wait
from tests.support.waiting import wait_until

READ_TIMEOUT = 2
POLL_INTERVAL = 15


@pytest.fixture(autouse=True)
def _short_timeouts(fault_site):
    """Let the processes time out soon on a silent connection."""
    limits = {"connect_timeout": READ_TIMEOUT, "read_timeout": READ_TIMEOUT}
    fault_site.config["dynbeat_engine_options"] = {"connect_args": limits}


@pytest.fixture
def proxy(fault_site, fault_services, proxied):
    """Return the proxy between the processes and their database. The test connects directly."""
    proxy = proxied(fault_services.database_server)
    fault_site.config["dynbeat_database_url"] = proxy.through(fault_services.database_url)
    return proxy


def test_no_run_is_lost_while_the_network_drops_all_packets(proxy, busy, workload):
    began = time.monotonic()
    with workload.fault():
        proxy.drop_silently()
        busy.meet_the_fault()
        noticed = time.monotonic() - began
        proxy.pass_on()

    workload.verify(
        f"database half-open (read_timeout {READ_TIMEOUT} s, all noticed it in {noticed:.1f} s)"
    )
    assert busy.is_unharmed()


def test_no_run_is_lost_while_the_server_hangs(busy, workload, database_server):
    with workload.fault():
        database_server.freeze()
        busy.meet_the_fault()
        database_server.thaw()

    workload.verify("database server frozen")
    assert busy.is_unharmed()


@pytest.mark.combination(database="postgresql")
def test_a_run_is_sent_again_if_its_worker_did_not_learn_that_it_started(
    fault_services, proxied, fault_site, workload
):
    proxy = proxied(fault_services.database_server)
    fault_site.beat().wait_for_log("beat started")
    fault_site.config["dynbeat_database_url"] = proxy.through(fault_services.database_url)
    worker = fault_site.worker(pool="solo").wait_for_log("ready.")
    workload.create_one_offs(1, first_in=0.5)
    workload.wait_for_starts(1)
    engine = fault_site.dynbeat.context.database.engine

    with workload.fault():
        with engine.connect() as holder:
            with suspended(worker):
                workload.create_one_offs(1, first_in=0.5)
                wait_until(lambda: fault_site.count_runs(Run.status == Status.SENT), within=15)
                holder.execute(select(Run.id).where(Run.status == Status.SENT).with_for_update())
            # Its UPDATE waits for the row. The row is free as soon as no answer arrives.
            wait_for_lock_wait(engine)
            proxy.drop_answers()
        wait_until(lambda: fault_site.count_runs(Run.status == Status.LOST), within=30)
        # No message of the run is left.
        worker.wait_for_log("deferred for too long", within=60)
        proxy.pass_on()

    workload.verify("the answer to a start is lost, and then the worker's database")
    assert worker.exit_status is None


def test_an_idle_beat_notices_the_silence_and_recovers(proxy, fault_site, workload):
    beat = fault_site.beat().wait_for_log("beat started")
    fault_site.worker(pool="threads").wait_for_log("ready.")
    began = time.monotonic()

    with workload.fault():
        proxy.drop_silently()
        beat.wait_for_log("pass failed", within=15)
        noticed = time.monotonic() - began
        proxy.pass_on()
    workload.create_one_offs(20, first_in=0.5)

    workload.verify(f"database half-open while beat is idle (noticed in {noticed:.1f} s)")
    assert beat.exit_status is None


@pytest.mark.combination(database="postgresql")
def test_a_silent_listen_connection_is_replaced_within_its_heartbeat(
    proxy, fault_site, record_property
):
    fault_site.config.update(dynbeat_poll_interval=POLL_INTERVAL)
    constants = {"PING_INTERVAL": 1.0, "RESPONSE_TIMEOUT": 1.0}
    for name, seconds in constants.items():
        fault_site.constants[f"celery_dynbeat.notify.postgresql.{name}"] = seconds
    beat = fault_site.beat().wait_for_log("beat started")
    wait_until(lambda: change_latency(fault_site, "warm-up") < 1, within=60)

    before = change_latency(fault_site, "before")
    proxy.drop_silently()
    create_one_off(fault_site, "during")
    beat.wait_for_log("listener lost its connection", within=10)
    proxy.pass_on()
    during = lag_of(fault_site, "during")
    after = change_latency(fault_site, "after")

    assert before < 1
    assert during < POLL_INTERVAL / 2
    assert after < 1
    record_property(
        SUMMARY_PROPERTY,
        f"LISTEN half-open (heartbeat 1 s, poll {POLL_INTERVAL} s): lag of a change"
        f" {before * 1000:.0f} ms before, {during:.1f} s during, {after * 1000:.0f} ms after",
    )
