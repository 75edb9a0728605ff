"""Hosts with wrong clocks: beat and workers decide by the database's clock."""

import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from celery_dynbeat.db.models import Run
from tests.support.fixtures import service_is_missing
from tests.support.waiting import wait_until

LIBRARIES = "lib*/*/faketime/libfaketimeMT.so.1"
AHEAD, BEHIND = 90, -90
#: Of the shift that a log shows, on a busy machine.
TOLERANCE = timedelta(seconds=45)
LATE_AT_MOST = timedelta(seconds=15)


@pytest.fixture
def shifted():
    """Return a function that returns the environment of a process with a shifted wall clock.

    The monotonic clock is not shifted: it counts seconds correctly on every host.
    """
    library = next(Path("/usr").glob(LIBRARIES), None)
    if library is None:
        service_is_missing("libfaketime is not installed (Debian's package libfaketime)")
    return lambda seconds: {
        "LD_PRELOAD": str(library),
        "FAKETIME": f"{seconds:+d}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }


def shift_of(process):
    """Return the shift of the wall clock of a process, by its log."""
    found = re.findall(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d+:", process.text)
    return datetime.fromisoformat(found[-1]) - datetime.now()  # noqa: DTZ005 - as in the log


def test_hosts_with_wrong_clocks_fire_nothing_early_late_or_twice(fault_site, workload, shifted):
    beats = {seconds: fault_site.beat(**shifted(seconds)) for seconds in (AHEAD, BEHIND)}
    workers = {
        seconds: fault_site.worker(name=f"w{seconds}@test", pool="threads", **shifted(seconds))
        for seconds in (AHEAD, BEHIND)
    }
    for seconds in (AHEAD, BEHIND):
        beats[seconds].wait_for_log("beat started")
        workers[seconds].wait_for_log("ready.")
        for process in (beats[seconds], workers[seconds]):
            assert abs(shift_of(process) - timedelta(seconds=seconds)) < TOLERANCE

    workload.create_repeating(20, seconds=5)
    workload.verify("clocks of hosts 90 s ahead and 90 s behind")

    wait_until(lambda: not fault_site.count_runs(Run.sent_at.is_(None)), within=10)
    runs = fault_site.all_runs()
    assert all(run.fire_at <= run.sent_at for run in runs)
    assert all(run.fire_at <= run.started_at <= run.finished_at for run in runs)
    assert max(run.sent_at - run.fire_at for run in runs) < LATE_AT_MOST
    assert {run.worker for run in runs} == {f"w{seconds}@test" for seconds in workers}


@pytest.mark.combination(broker="rabbitmq")
def test_a_beat_whose_clock_is_ahead_does_not_make_the_broker_drop_messages_early(
    fault_site, shifted
):
    fault_site.config["dynbeat_resend_after"] = 3_600
    fault_site.beat(**shifted(AHEAD)).wait_for_log("beat started")
    fault_site.create_once("record", expires_after=30)
    fault_site.wait_for_run("record", "sent")

    # Without a worker, only the broker checks the expiry of the message.
    fault_site.worker()

    fault_site.wait_for_run("record", "succeeded")


# RabbitMQ drops an expired message itself, before a worker receives it.
@pytest.mark.combination(broker="redis")
def test_a_worker_whose_clock_is_behind_starts_no_expired_run(fault_site, shifted):
    # Only the guard checks the expiry within the time of this test.
    fault_site.config.update(dynbeat_dispatch_timeout=60, dynbeat_resend_after=3_600)
    fault_site.beat().wait_for_log("beat started")
    fault_site.create_once("record", expires_after=1)
    sent = fault_site.wait_for_run("record", "sent")
    clock = fault_site.dynbeat.context.clock
    wait_until(lambda: clock.now() > sent.fire_at + timedelta(seconds=3), within=10)

    fault_site.worker(**shifted(BEHIND))

    fault_site.wait_for_run("record", "succeeded", "expired")
    assert fault_site.count_runs(Run.status == "expired") == 1
    assert fault_site.event_log.starts() == []
