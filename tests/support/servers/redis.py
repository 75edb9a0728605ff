"""A Redis server for tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import redis

from tests.support.servers.base import Server
from tests.support.servers.machine import find_program


class RedisServer(Server):
    """A server without persistence: it is empty after ``kill`` and after ``stop``."""

    name: ClassVar[str] = "redis"

    @property
    def url(self) -> str:
        """The URL of database 0, for kombu and for redis-py."""
        return f"redis://127.0.0.1:{self.port}/0"

    def find_programs(self) -> None:
        """Find redis-server, or valkey-server, which has the same protocol."""
        self._redis = find_program("redis-server", "valkey-server", package="redis-server")

    def command(self) -> Sequence[str | Path]:
        """Return redis-server in the foreground."""
        options = f"--port {self.port} --bind 127.0.0.1 --save  --appendonly no --dir {self.folder}"
        return [self._redis, *options.split(" ")]

    def answers(self) -> bool:
        """Return whether the server answers a PING."""
        client = redis.Redis.from_url(self.url, socket_timeout=2, retry=None)
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()
