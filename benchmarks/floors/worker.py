"""F4: no-op tasks per second of a plain prefork worker, with and without a result backend."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import redis

from benchmarks.consuming import rate
from benchmarks.floors.publishing import BATCH, Message, sender
from benchmarks.loads import TASK
from benchmarks.queues import queue
from benchmarks.services import Site
from celery_dynbeat.common.run_ids import new_run_id

AGAINST = "plain worker"


def measure(site: Site, *, count: int, results_url: str | None = None) -> float:
    """Return tasks per second. ``results_url``: an empty Redis database, or None for no results."""
    config = {"broker_url": site.broker_url, "plain": True, "result_backend": results_url}
    with queue(site) as waiting, _results(results_url, count) as is_done:
        _publish(site, count)
        return rate(waiting, config, count=count, is_done=is_done)


@contextmanager
def _results(url: str | None, count: int) -> Iterator[Callable[[], bool]]:
    """Yield a check whether all results exist. Without a backend it is always true."""
    if url is None:
        yield lambda: True
        return
    with redis.Redis.from_url(url) as client:
        server: Any = client
        yield lambda: bool(server.dbsize() == count)
        server.flushdb()


def _publish(site: Site, count: int) -> None:
    with sender(site.broker_url) as bare:
        for start in range(0, count, BATCH):
            now = datetime.now(UTC)
            size = min(BATCH, count - start)
            bare.send(Message(new_run_id(now), TASK, {}) for _ in range(size))
