"""The time at which a message arrives in a queue of the broker, measured by a consumer."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

#: Celery's default queue.
QUEUE = "celery"


class Arrivals:
    """Takes messages out of one queue in Redis."""

    def __init__(self, client: "redis.Redis", queue: str) -> None:
        self._client: Any = client
        self._queue = queue

    def wait(self, *, within: float) -> float:
        """Take a message and return its perf_counter(). AssertionError if none comes."""
        found = self._client.blpop([self._queue], timeout=within)
        arrived = time.perf_counter()
        assert found is not None, f"no message in {self._queue!r} within {within:g} s"
        return arrived

    def count(self) -> int:
        """Return how many messages wait."""
        return int(self._client.llen(self._queue))


@contextmanager
def arrivals(broker_url: str, *, queue: str = QUEUE) -> Iterator[Arrivals]:
    """Yield the arrivals of one queue. Redis only."""
    assert broker_url.startswith("redis:"), "only Redis is read directly"
    # A client that times out and retries could lose the response to its first request.
    with redis.Redis.from_url(broker_url, socket_timeout=None) as client:
        client.ping()
        yield Arrivals(client, queue)
