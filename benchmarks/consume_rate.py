"""Measure how fast a worker consumes a queue that was filled before its start."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.processes import worker
from benchmarks.queues import Queue
from tests.support.waiting import wait_until

CONCURRENCY = 2
START_TIMEOUT = 60.0
ARRIVAL_TIMEOUT = 10.0
END_TIMEOUT = 60.0
#: Seconds between two queries of the queue length.
POLL_INTERVAL = 0.02
#: A worker at fewer tasks a second fails.
MIN_TASK_RATE = 20
#: The first and the last tenth of the messages do not count.
MARGIN = 0.1


def consume_rate(
    task_queue: Queue, config: Mapping[str, Any], *, count: int, is_done: Callable[[], bool]
) -> float:
    """Return the tasks a second of a worker that consumes ``count`` queued messages.

    The first tenth is not counted, because the worker is still starting. The worker runs until
    ``is_done`` returns true: stopped earlier, it would requeue the messages that it prefetched.
    """
    # Without confirms, messages reach the queue after ``publish`` returns.
    message = f"the queue does not hold {count} messages"
    wait_until(lambda: task_queue.count() == count, within=ARRIVAL_TIMEOUT, message=message)
    points: list[tuple[float, int]] = []
    deadline = time.perf_counter() + START_TIMEOUT + count / MIN_TASK_RATE
    with worker(config, concurrency=CONCURRENCY) as process:
        while not points or points[-1][1]:
            points.append((time.perf_counter(), task_queue.count()))
            time.sleep(POLL_INTERVAL)
            assert points[-1][0] < deadline, f"{points[-1][1]} left\n{process.report()}"
        wait_until(is_done, within=END_TIMEOUT, message="the worker has not finished all tasks")
    inner = [each for each in points if MARGIN * count <= each[1] <= (1 - MARGIN) * count]
    assert len(inner) > 1, f"{count} messages are too few for a rate"
    (started_at, before), (ended_at, after) = inner[0], inner[-1]
    return (before - after) / (ended_at - started_at)
