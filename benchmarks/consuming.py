"""The rate at which a worker empties a queue that was filled before it started."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.processes import worker
from benchmarks.queues import Queue
from tests.support.waiting import wait_until

CONCURRENCY = 2
STARTS_WITHIN = 60.0
ARRIVES_WITHIN = 10.0
ENDS_WITHIN = 60.0
#: Seconds between two counts of the queue.
COUNT_INTERVAL = 0.02
#: A worker with fewer tasks per second than this is aborted.
SLOWEST = 20
#: The rate is that of the messages between the first tenth and the last.
MARGIN = 0.1


def rate(
    waiting: Queue, config: Mapping[str, Any], *, count: int, is_done: Callable[[], bool]
) -> float:
    """Return the tasks per second of a worker with ``count`` queued messages.

    Its start does not count: the first tenth of the messages comes before the measurement. The
    worker runs until ``is_done`` is true. It would requeue prefetched messages otherwise.
    """
    # Without publisher confirms, the messages arrive shortly after they were published.
    message = f"not {count} messages in the queue"
    wait_until(lambda: waiting.count() == count, within=ARRIVES_WITHIN, message=message)
    points: list[tuple[float, int]] = []
    give_up = time.perf_counter() + STARTS_WITHIN + count / SLOWEST
    with worker(config, concurrency=CONCURRENCY) as process:
        while not points or points[-1][1]:
            points.append((time.perf_counter(), waiting.count()))
            time.sleep(COUNT_INTERVAL)
            assert points[-1][0] < give_up, f"{points[-1][1]} left\n{process.report()}"
        wait_until(is_done, within=ENDS_WITHIN, message="the worker has not finished all tasks")
    inner = [each for each in points if MARGIN * count <= each[1] <= (1 - MARGIN) * count]
    assert len(inner) > 1, f"{count} messages are too few for a rate"
    (began, before), (ended, after) = inner[0], inner[-1]
    return (before - after) / (ended - began)
