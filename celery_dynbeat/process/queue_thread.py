"""A daemon thread with a bounded queue, so that a slow receiver delays no caller."""

import threading
import time
from collections.abc import Callable
from queue import Empty, Full, Queue
from typing import Generic, TypeVar

T = TypeVar("T")


class QueueThread(Generic[T]):
    """Handles items in the order of ``put``. The thread starts at the first item.

    ``handle`` must not raise.
    """

    def __init__(self, handle: Callable[[T], None], *, name: str, size: int) -> None:
        self._handle = handle
        self._name = name
        self._queue: Queue[T | None] = Queue(size)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, item: T) -> bool:
        """Queue ``item``; return False when the queue is full. Never waits for ``handle``."""
        try:
            self._queue.put_nowait(item)
        except Full:
            return False
        with self._lock:
            return self._thread is not None or self._start()

    def _start(self) -> bool:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # The system has no more threads. The next item tries again.
            return False
        self._thread = thread
        return True

    def close(self, *, deadline: float) -> int:
        """Wait for the queued items until ``deadline`` on the monotonic clock, and end the thread.

        Returns the number of items that were not handled in time.
        """
        finished = self._queue.all_tasks_done
        with finished:
            finished.wait_for(
                lambda: not self._queue.unfinished_tasks, max(0, deadline - time.monotonic())
            )
            left = self._queue.unfinished_tasks
        self._discard_queued()
        if self._thread is not None:
            self._queue.put_nowait(None)
        return left

    def _discard_queued(self) -> None:
        try:
            while True:
                self._queue.get_nowait()
                self._queue.task_done()
        except Empty:
            return

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            self._handle(item)
            self._queue.task_done()
        self._queue.task_done()
