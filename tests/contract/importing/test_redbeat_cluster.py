"""Entries that celery-redbeat itself stored in a Redis Cluster of two masters."""

import json

import pytest
from redis import RedisCluster

from tests.support.peers import write_store
from tests.support.servers import ClusterServer
from tests.support.servers.redis_cluster import SLOTS, join

SOURCE, ENTRIES = "redbeat", 40


def entry(number):
    return {"name": f"n{number}", "task": "t", "schedule": ["interval", {"run_every": 300}]}


@pytest.fixture
def nodes(own_server):
    nodes = own_server(ClusterServer), own_server(ClusterServer)
    join(*nodes)
    return nodes


#: With its setting for a list of nodes, RedBeat 2.4.2 fails on redis 4 and newer.
CLUSTER = {"redbeat_redis_options": {"cluster": True}}


@pytest.fixture
def store(nodes):
    def write(**settings):
        settings = json.dumps(CLUSTER | settings)
        rows = [entry(number) for number in range(ENTRIES)]
        write_store(SOURCE, rows, f"redis://127.0.0.1:{nodes[0].port}", "UTC", settings)

    return write


def halves(nodes, prefix="redbeat:"):
    """Return the masters that have entries, by their slots."""
    with RedisCluster.from_url(nodes[0].url) as client:
        slots = [client.keyslot(f"{prefix}n{number}") for number in range(ENTRIES)]
    return {slot < SLOTS // 2 for slot in slots}


def assert_imported_once(imported, dynbeat, *arguments):
    shown = imported(SOURCE, *arguments, "--apply")
    assert {each["outcome"] for each in shown.values()} == {"create"}
    assert {info.name for info in dynbeat.schedules.list()} == {f"n{n}" for n in range(ENTRIES)}
    assert imported(SOURCE, *arguments, "--apply") == {}


@pytest.mark.parametrize("by_nodes", [True, False], ids=["nodes", "url"])
def test_the_settings_of_redbeat_find_the_entries_of_each_master(
    nodes, store, imported, dynbeat, by_nodes
):
    store()
    assert halves(nodes) == {True, False}
    addresses = [{"host": "127.0.0.1", "port": str(node.port)} for node in nodes]
    options = {"startup_nodes": addresses, "retry_period": 5}
    dynbeat.app.conf.update(
        redbeat_redis_url="redis-cluster://" if by_nodes else f"redis://127.0.0.1:{nodes[1].port}",
        **({"redbeat_redis_options": options} if by_nodes else CLUSTER),
    )

    assert_imported_once(imported, dynbeat)


def test_a_node_without_the_option_is_refused_and_nothing_is_written(
    nodes, store, command, dynbeat
):
    store()
    for node in nodes:
        result = command(SOURCE, f"redis://127.0.0.1:{node.port}", "--apply")

        assert result.exit_code == 1
        assert "this is a node of a Redis Cluster: write redis-cluster://" in result.stderr
    assert dynbeat.schedules.count().count == 0


@pytest.mark.parametrize("scheme", ["redis-sentinel", "sentinel"])
def test_the_url_of_a_sentinel_is_refused_with_the_fix(command, scheme):
    result = command(SOURCE, f"{scheme}://:s3cret@127.0.0.1:26379/0")

    assert result.exit_code == 1
    assert "set redbeat_redis_url and redbeat_redis_options" in result.stderr
    assert "s3cret" not in result.output
