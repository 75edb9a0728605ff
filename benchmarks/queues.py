"""The queue that messages end in, as the broker has it: how many wait, and which runs they are."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import redis
from celery import Celery

from benchmarks.arrivals import QUEUE
from benchmarks.services import Site

#: Messages that one command takes out of a Redis.
TAKEN_AT_ONCE = 1_000
#: Seconds for RabbitMQ to deliver a message that it has counted.
DELIVERS_WITHIN = 10.0


class Queue(Protocol):
    """The default queue of one site. It exists, so that the first message waits for nothing."""

    def count(self) -> int:
        """Return how many messages wait."""

    def drain(self) -> list[str]:
        """Take out all messages that wait, perhaps some newer ones, and return their tasks' ids."""


class _RedisQueue:
    def __init__(self, client: "redis.Redis") -> None:
        self._client: Any = client

    def count(self) -> int:
        return int(self._client.llen(QUEUE))

    def drain(self) -> list[str]:
        ids: list[str] = []
        # kombu puts messages in at the left.
        while taken := self._client.rpop(QUEUE, TAKEN_AT_ONCE):
            ids += [json.loads(message)["headers"]["id"] for message in taken]
        return ids


class _AmqpQueue:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._channel = connection.channel()

    def count(self) -> int:
        return int(self._channel.queue_declare(QUEUE, passive=True).message_count)

    def drain(self) -> list[str]:
        ids: list[str] = []

        def took(message: Any) -> None:
            ids.append(message.headers["id"])

        there = self.count()
        tag = self._channel.basic_consume(QUEUE, no_ack=True, callback=took)
        while len(ids) < there:
            self._connection.drain_events(timeout=DELIVERS_WITHIN)
        # What is on its way to us comes before the answer to this.
        self._channel.basic_cancel(tag)
        return ids


@contextmanager
def queue(site: Site) -> Iterator[Queue]:
    """Yield the default queue of ``site``, which is made as Celery makes it."""
    app = Celery("benchmark", broker=site.broker_url, set_as_current=False)
    with app.connection_for_write(heartbeat=0) as connection:
        app.amqp.queues[QUEUE].bind(connection.default_channel).declare()
        if connection.transport.driver_type == "amqp":
            yield _AmqpQueue(connection.connection)
        else:
            with redis.Redis.from_url(site.broker_url) as client:
                yield _RedisQueue(client)
    app.close()
