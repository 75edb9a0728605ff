"""A broker that replies but accepts no message."""

import pytest
import redis

from tests.support.servers import RedisServer
from tests.support.sites import site
from tests.support.waiting import wait_until

NAMES = [f"due-{n}" for n in range(5)]


@pytest.fixture
def own_redis(own_server):
    return own_server(RedisServer)


@pytest.fixture
def patient_site(site_folder, postgresql_url, own_redis):
    """Return an installation on its own Redis that retries refused messages soon."""
    settings = {"broker_url": own_redis.url, "dynbeat_dispatch_timeout": 2}
    with site(site_folder, database_url=postgresql_url, **settings) as made:
        yield made


def set_memory(server, limit):
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", limit)


def errors_of_schedules(running):
    return {running.mine.get(name).error for name in NAMES}


def statuses(running):
    return [run.status for run in running.runs()]


def test_a_full_redis_delays_runs_and_fails_none(patient_site, own_redis):
    beat = patient_site.beat().wait_for_log("beat started")
    worker = patient_site.worker().wait_for_log("ready.")

    set_memory(own_redis, 1)
    for name in NAMES:
        patient_site.create_once(name, task="probe.record")
    beat.wait_for_log("pass failed", times=3)

    wait_until(lambda: statuses(patient_site) == ["pending"] * len(NAMES), within=10)
    assert errors_of_schedules(patient_site) == {None}

    set_memory(own_redis, 0)

    runs = [patient_site.wait_for_run(name, "succeeded") for name in NAMES]
    witness = patient_site.app.send_task("probe.record")
    wait_until(lambda: patient_site.event_log.starts(witness.id), within=10)
    assert len(patient_site.runs()) == len(NAMES)
    assert [len(patient_site.event_log.starts(run.id)) for run in runs] == [1] * len(NAMES)
    assert {run.attempt for run in runs} == {1}
    assert errors_of_schedules(patient_site) == {None}
    assert (beat.exit_status, worker.exit_status) == (None, None)
