"""F1: messages built with ``as_task_v2`` and published by kombu, without a record.

On Redis it uses pipelines of 1,000, ``Producer.batch(1000)``. On AMQP, kombu has no batches: each
message is published on its own, by a producer without publisher confirms.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from celery import Celery
from kombu import Producer

from benchmarks.arrivals import QUEUE
from benchmarks.loads import OWNERS, TASK
from benchmarks.queues import queue
from benchmarks.services import Site
from celery_dynbeat.common.run_ids import new_run_id
from tests.support.waiting import wait_until

BATCH = 1_000
ARRIVES_WITHIN = 60.0
WARM_UP = 100


@dataclass(frozen=True, slots=True)
class Message:
    """The content of a message."""

    task_id: str
    task: str
    kwargs: Mapping[str, Any]


def against(site: Site) -> str:
    """Return what is measured on the broker of ``site``."""
    on_redis = site.broker_url.startswith("redis:")
    return "kombu's batches" if on_redis else "kombu without confirms"


class Sender:
    """A plain producer for the default queue. The queue must exist."""

    def __init__(self, app: Celery, producer: Producer) -> None:
        self._app = app
        self._producer = producer

    def send(self, messages: Iterable[Message]) -> None:
        """Publish up to ``BATCH`` messages."""
        with self._producer.batch(BATCH):
            for each in messages:
                made: Any = self._app.amqp.as_task_v2(each.task_id, each.task, (), each.kwargs)
                self._producer.publish(
                    made.body,
                    exchange="",
                    routing_key=QUEUE,
                    serializer="json",
                    headers=made.headers,
                    **made.properties,
                )


@contextmanager
def sender(broker_url: str) -> Iterator[Sender]:
    """Yield a sender with its own connection."""
    app = Celery("floor", broker=broker_url, set_as_current=False)
    with app.connection_for_write() as connection:
        # Celery or the URL may enable confirms. One confirm per message costs most of the rate.
        options = connection.transport_options or {}
        connection.transport_options = {**options, "confirm_publish": False}
        yield Sender(app, app.amqp.Producer(connection, auto_declare=False))
    app.close()


def measure(site: Site, *, count: int) -> float:
    """Return messages per second until ``count`` are in the queue; empty the queue afterwards."""
    with queue(site) as waiting, sender(site.broker_url) as bare:
        bare.send(_messages(WARM_UP))
        wait_until(lambda: waiting.count() == WARM_UP, within=ARRIVES_WITHIN)
        waiting.drain()
        batches = [min(BATCH, count - start) for start in range(0, count, BATCH)]
        started = time.perf_counter()
        for size in batches:
            bare.send(_messages(size))
        wait_until(lambda: waiting.count() == count, within=ARRIVES_WITHIN)
        seconds = time.perf_counter() - started
        _check(waiting.drain(), count)
    return count / seconds


def _messages(count: int) -> Iterator[Message]:
    now = datetime.now(UTC)
    for number in range(count):
        yield Message(new_run_id(now), TASK, {"user_id": number % OWNERS})


def _check(arrived: Sequence[str], count: int) -> None:
    assert len(set(arrived)) == len(arrived) == count, "the floor lost messages"
