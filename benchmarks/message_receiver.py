"""Receive messages from a Redis queue and time their arrival."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

#: Celery's default queue.
QUEUE = "celery"


class MessageReceiver:
    """Removes messages from one queue of a Redis server."""

    def __init__(self, client: "redis.Redis", queue: str) -> None:
        self._client: Any = client
        self._queue = queue

    def wait(self, *, within: float) -> float:
        """Remove a message and return its arrival time, by perf_counter().

        AssertionError if no message arrives ``within`` seconds.
        """
        message = self._client.blpop([self._queue], timeout=within)
        arrived_at = time.perf_counter()
        assert message is not None, f"no message in {self._queue!r} within {within:g} s"
        return arrived_at

    def count(self) -> int:
        """Return the number of messages in the queue."""
        return int(self._client.llen(self._queue))


@contextmanager
def message_receiver(broker_url: str, *, queue: str = QUEUE) -> Iterator[MessageReceiver]:
    """Yield a receiver for one queue. Redis only."""
    assert broker_url.startswith("redis:"), (
        f"this benchmark needs Redis as its broker, not {broker_url.partition(':')[0]}"
    )
    # With a socket timeout the client would retry BLPOP and could lose the first reply.
    with redis.Redis.from_url(broker_url, socket_timeout=None) as client:
        client.ping()
        yield MessageReceiver(client, queue)
