"""Redis Sentinel: a master, its replica, and a sentinel that promotes the replica."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import redis

from tests.support.servers.base import Server
from tests.support.servers.machine import find_program
from tests.support.servers.redis import RedisServer

MASTER_NAME = "dynbeat"
#: The quorum is 1: one sentinel decides. A master without an answer for one second is down.
CONFIGURATION = """\
port {port}
bind 127.0.0.1
dir {folder}
sentinel monitor {name} 127.0.0.1 {master_port} 1
sentinel down-after-milliseconds {name} 1000
sentinel failover-timeout {name} 5000
"""


class ReplicaServer(RedisServer):
    """A replica of the Redis server on ``master_port``, until a sentinel promotes it."""

    master_port: int

    def command(self) -> Sequence[str | Path]:
        """Return redis-server in the foreground, as a replica that synchronises without delay."""
        replica = f"--replicaof 127.0.0.1 {self.master_port} --repl-diskless-sync-delay 0"
        return [*super().command(), *replica.split(" ")]

    def answers(self) -> bool:
        """Return whether the replica is synchronised with its master."""
        return super().answers() and self._is_linked()

    def _is_linked(self) -> bool:
        with redis.Redis.from_url(self.url, socket_timeout=2, retry=None) as client:
            return bool(client.info("replication").get("master_link_status") == "up")


class SentinelServer(Server):
    """A sentinel that watches the Redis server on ``master_port``, which has a replica."""

    name: ClassVar[str] = "sentinel"
    master_port: int

    @property
    def url(self) -> str:
        """The URL for kombu. Its ``transport_options`` must also name the master."""
        return f"sentinel://127.0.0.1:{self.port}/0"

    @property
    def transport_options(self) -> dict[str, str]:
        """The ``broker_transport_options`` for kombu."""
        return {"master_name": MASTER_NAME}

    def find_programs(self) -> None:
        """Find redis-sentinel."""
        self._sentinel = find_program("redis-sentinel", package="redis-sentinel")

    def configure(self) -> None:
        """Write the configuration once: the sentinel stores its state in the same file."""
        path = self.folder / "sentinel.conf"
        if self._has_answered:
            return
        path.write_text(
            CONFIGURATION.format(
                port=self.port,
                folder=self.folder,
                name=MASTER_NAME,
                master_port=self.master_port,
            )
        )

    def command(self) -> Sequence[str | Path]:
        """Return redis-sentinel in the foreground."""
        return [self._sentinel, self.folder / "sentinel.conf"]

    def answers(self) -> bool:
        """Return whether the sentinel knows a replica to promote."""
        return bool(self._ask("SENTINEL REPLICAS"))

    def master_port_now(self) -> int | None:
        """Return the port of the current master, None while the sentinel does not answer."""
        address = self._ask("SENTINEL GET-MASTER-ADDR-BY-NAME")
        return int(address[1]) if address else None

    def _ask(self, command: str) -> Any:
        address = f"redis://127.0.0.1:{self.port}"
        client: Any = redis.Redis.from_url(address, socket_timeout=2, retry=None)
        try:
            return client.execute_command(command, MASTER_NAME)
        except redis.RedisError:
            return None
        finally:
            client.close()
