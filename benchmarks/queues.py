"""Read the default queue of the broker: its length, and the task ids of its messages."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import redis
from celery import Celery

from benchmarks.message_receiver import QUEUE
from benchmarks.services import Site

#: Messages that one RPOP removes.
POP_COUNT = 1_000
#: Seconds for RabbitMQ to deliver a message that it counted.
DELIVERY_TIMEOUT = 10.0


class Queue(Protocol):
    """The default queue of one site. It is declared before the first message."""

    def count(self) -> int:
        """Return the number of messages."""

    def drain(self) -> list[str]:
        """Remove all messages and return their task ids; newer messages may be included."""


class _RedisQueue:
    def __init__(self, client: "redis.Redis") -> None:
        self._client: Any = client

    def count(self) -> int:
        return int(self._client.llen(QUEUE))

    def drain(self) -> list[str]:
        ids: list[str] = []
        # kombu pushes messages at the left end.
        while messages := self._client.rpop(QUEUE, POP_COUNT):
            ids += [json.loads(message)["headers"]["id"] for message in messages]
        return ids


class _AmqpQueue:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._channel = connection.channel()

    def count(self) -> int:
        return int(self._channel.queue_declare(QUEUE, passive=True).message_count)

    def drain(self) -> list[str]:
        ids: list[str] = []

        def on_message(message: Any) -> None:
            ids.append(message.headers["id"])

        queued = self.count()
        tag = self._channel.basic_consume(QUEUE, no_ack=True, callback=on_message)
        while len(ids) < queued:
            self._connection.drain_events(timeout=DELIVERY_TIMEOUT)
        # RabbitMQ delivers pending messages before its reply to basic.cancel.
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
