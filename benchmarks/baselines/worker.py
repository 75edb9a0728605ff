"""F4: measure the no-op tasks a second of a plain prefork worker, with and without results."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import redis

from benchmarks.baselines.publishing import BATCH, Message, sender
from benchmarks.consume_rate import consume_rate
from benchmarks.queues import queue
from benchmarks.services import Site
from benchmarks.workloads import TASK
from celery_dynbeat.common.run_ids import new_run_id

NAME = "plain worker"


def measure(site: Site, *, count: int, results_url: str | None = None) -> float:
    """Return the tasks a second. ``results_url`` None: the worker stores no results.

    The Redis database of ``results_url`` must be empty.
    """
    config = {"broker_url": site.broker_url, "plain": True, "result_backend": results_url}
    with queue(site) as task_queue, stored_results(results_url, count) as is_done:
        publish(site, count)
        return consume_rate(task_queue, config, count=count, is_done=is_done)


@contextmanager
def stored_results(url: str | None, count: int) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether all results are stored; without a backend, True.

    The results are deleted afterwards.
    """
    if url is None:
        yield lambda: True
        return
    with redis.Redis.from_url(url) as client:
        server: Any = client
        yield lambda: bool(server.dbsize() == count)
        server.flushdb()


def publish(site: Site, count: int) -> None:
    """Publish ``count`` messages without arguments."""
    with sender(site.broker_url) as bare:
        for start in range(0, count, BATCH):
            now = datetime.now(UTC)
            size = min(BATCH, count - start)
            bare.send(Message(new_run_id(now), TASK, {}) for _ in range(size))
