"""The broker's queue: the number of messages in it, and the ids of their runs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import redis
from celery import Celery

from benchmarks.arrivals import QUEUE
from benchmarks.services import Site

#: Messages that one Redis command takes.
TAKEN_AT_ONCE = 1_000
#: Seconds in which RabbitMQ delivers a message that it has counted.
DELIVERS_WITHIN = 10.0


class Queue(Protocol):
    """The default queue of one site. It is declared before the first message."""

    def count(self) -> int:
        """Return how many messages wait."""

    def drain(self) -> list[str]:
        """Take all messages, perhaps also newer ones, and return the ids of their tasks."""


class _RedisQueue:
    def __init__(self, client: "redis.Redis") -> None:
        self._client: Any = client

    def count(self) -> int:
        return int(self._client.llen(QUEUE))

    def drain(self) -> list[str]:
        ids: list[str] = []
        # kombu pushes messages on the left.
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
        # Deliveries that are under way arrive before the reply to this.
        self._channel.basic_cancel(tag)
        return ids


@contextmanager
def queue(site: Site) -> Iterator[Queue]:
    """Yield the default queue of ``site``, declared as Celery declares it."""
    app = Celery("benchmark", broker=site.broker_url, set_as_current=False)
    with app.connection_for_write(heartbeat=0) as connection:
        app.amqp.queues[QUEUE].bind(connection.default_channel).declare()
        if connection.transport.driver_type == "amqp":
            yield _AmqpQueue(connection.connection)
        else:
            with redis.Redis.from_url(site.broker_url) as client:
                yield _RedisQueue(client)
    app.close()
