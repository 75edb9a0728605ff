"""F1: build messages with ``as_task_v2`` and publish them with kombu, without recording.

On Redis, ``Producer.batch(1000)`` sends pipelines of 1,000 messages. kombu has no batches on AMQP:
there a producer without confirms sends single messages, and lost messages go unnoticed.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from celery import Celery
from kombu import Producer

from benchmarks.message_receiver import QUEUE
from benchmarks.queues import queue
from benchmarks.services import Site
from benchmarks.workloads import OWNERS, TASK
from celery_dynbeat.common.run_ids import new_run_id
from tests.support.waiting import wait_until

BATCH = 1_000
ARRIVAL_TIMEOUT = 60.0
WARM_UP = 100


@dataclass(frozen=True, slots=True)
class Message:
    """The contents of a message."""

    task_id: str
    task: str
    kwargs: Mapping[str, Any]


def baseline_name(site: Site) -> str:
    """Return the name of the baseline on the broker of ``site``."""
    on_redis = site.broker_url.startswith("redis:")
    return "kombu's batches" if on_redis else "kombu without confirms"


class Sender:
    """Publishes to the default queue, which must exist."""

    def __init__(self, app: Celery, producer: Producer) -> None:
        self._app = app
        self._producer = producer

    def send(self, messages: Iterable[Message]) -> None:
        """Publish up to ``BATCH`` messages."""
        with self._producer.batch(BATCH):
            for task in messages:
                message: Any = self._app.amqp.as_task_v2(task.task_id, task.task, (), task.kwargs)
                self._producer.publish(
                    message.body,
                    exchange="",
                    routing_key=QUEUE,
                    serializer="json",
                    headers=message.headers,
                    **message.properties,
                )


@contextmanager
def sender(broker_url: str) -> Iterator[Sender]:
    """Yield a sender with a new connection."""
    app = Celery("baseline", broker=broker_url, set_as_current=False)
    with app.connection_for_write() as connection:
        # Celery or a URL may enable confirms. One confirm for each message costs most of the rate.
        options = connection.transport_options or {}
        connection.transport_options = {**options, "confirm_publish": False}
        yield Sender(app, app.amqp.Producer(connection, auto_declare=False))
    app.close()


def measure(site: Site, *, count: int) -> float:
    """Return the messages a second until all ``count`` are in the queue; then empty the queue."""
    with queue(site) as task_queue, sender(site.broker_url) as bare:
        bare.send(_messages(WARM_UP))
        wait_until(lambda: task_queue.count() == WARM_UP, within=ARRIVAL_TIMEOUT)
        task_queue.drain()
        batches = [min(BATCH, count - start) for start in range(0, count, BATCH)]
        started = time.perf_counter()
        for size in batches:
            bare.send(_messages(size))
        wait_until(lambda: task_queue.count() == count, within=ARRIVAL_TIMEOUT)
        seconds = time.perf_counter() - started
        _check(task_queue.drain(), count)
    return count / seconds


def _messages(count: int) -> Iterator[Message]:
    now = datetime.now(UTC)
    for number in range(count):
        yield Message(new_run_id(now), TASK, {"user_id": number % OWNERS})


def _check(arrived: Sequence[str], count: int) -> None:
    assert len(set(arrived)) == len(arrived) == count, "the baseline lost messages"
