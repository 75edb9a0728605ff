"""Redis with Sentinel: the master dies, and data that was not replicated is lost."""

from types import SimpleNamespace

import pytest
import redis

from tests.faults.conftest import QUICK, QUICK_CONSTANTS
from tests.support.fault_summary import SUMMARY_PROPERTY
from tests.support.servers import RedisServer, ReplicaServer, SentinelServer
from tests.support.sites import site
from tests.support.waiting import wait_until
from tests.support.workload import Workload


@pytest.fixture
def sentinel(own_server):
    """Return a sentinel with the master and the replica that it monitors."""
    master = own_server(RedisServer)
    replica = own_server(type("Replica", (ReplicaServer,), {"master_port": master.port}))
    server = own_server(type("Sentinel", (SentinelServer,), {"master_port": master.port}))
    return SimpleNamespace(server=server, master=master, replica=replica)


@pytest.fixture
def sentinel_site(tmp_path, postgresql_url, sentinel):
    with site(
        tmp_path,
        database_url=postgresql_url,
        broker_url=sentinel.server.url,
        broker_transport_options=sentinel.server.transport_options,
        **QUICK,
    ) as created:
        created.constants.update(QUICK_CONSTANTS)
        yield created


def fail_over(sentinel):
    """Kill the master; return when the replica is the master and accepts messages."""
    sentinel.master.kill()
    wait_until(
        lambda: sentinel.server.master_port_now() == sentinel.replica.port,
        within=30,
        message="no failover",
    )
    with redis.Redis.from_url(sentinel.replica.url) as client:
        wait_until(lambda: client.info("replication")["role"] == "master", within=10)


# About 20 s: the worker tries to reconnect after 2 s, then after 4 s.
def test_a_failover_loses_and_duplicates_no_run(sentinel, sentinel_site, record_property):
    workload = Workload(
        sentinel_site,
        label="postgresql-sentinel",
        publish=lambda line: record_property(SUMMARY_PROPERTY, line),
    )
    beats = [sentinel_site.beat() for _ in range(2)]
    worker = sentinel_site.worker(pool="threads")
    for process in (*beats, worker):
        process.wait_for_log("ready." if process is worker else "beat started")
    workload.create_repeating(20, seconds=12)
    workload.wait_for_starts(20)

    with workload.fault():
        fail_over(sentinel)

    workload.verify("failover of Redis Sentinel")
    assert [beat.exit_status for beat in beats] == [None, None]
    assert worker.exit_status is None or worker.crashed_in_celery
