"""Redis Cluster: masters that divide the slots."""

from collections.abc import Sequence
from pathlib import Path

import redis

from tests.support.servers.machine import free_port
from tests.support.servers.redis import RedisServer
from tests.support.waiting import wait_until

SLOTS = 16_384
JOINED_WITHIN = 20.0


class ClusterServer(RedisServer):
    """A node of a cluster, alone and without slots until ``join``."""

    def choose_ports(self) -> None:
        """Choose the ports for clients and for the other nodes."""
        super().choose_ports()
        self.bus_port = free_port()

    def command(self) -> Sequence[str | Path]:
        """Return redis-server in the foreground, as a node."""
        options = "--cluster-enabled yes --cluster-announce-ip 127.0.0.1"
        return [*super().command(), *options.split(" "), "--cluster-port", str(self.bus_port)]

    def ask(self, command: str) -> object:
        """Return what the node answers to a command."""
        with redis.Redis.from_url(self.url, socket_timeout=2, retry=None) as client:
            return client.execute_command(*command.split(" "))


def join(*nodes: ClusterServer) -> None:
    """Make one cluster of the nodes, each with an equal range of slots."""
    first, each = nodes[0], SLOTS // len(nodes)
    for number, node in enumerate(nodes):
        last = SLOTS if node is nodes[-1] else (number + 1) * each
        node.ask(f"CLUSTER ADDSLOTSRANGE {number * each} {last - 1}")
        if node is not first:
            node.ask(f"CLUSTER MEET 127.0.0.1 {first.port} {first.bus_port}")
    wait_until(lambda: all(map(_is_complete, nodes)), within=JOINED_WITHIN)


def _is_complete(node: ClusterServer) -> bool:
    with redis.Redis.from_url(node.url, socket_timeout=2, retry=None) as client:
        return bool(client.cluster("INFO")["cluster_state"] == "ok")
