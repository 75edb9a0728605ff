"""Share the result of a slow call between callers, and wait for it for a limited time."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

T = TypeVar("T")


class CachedCall(Generic[T]):
    """Calls ``call`` in a daemon thread, one at a time and at most once per ``max_age`` seconds.

    A caller waits until ``timeout`` seconds after the start of the call, so the callers of a call
    that hangs do not wait at all. The call does not block the exit either.
    """

    def __init__(self, call: Callable[[], T], *, timeout: float, max_age: float) -> None:
        self._call, self._timeout, self._max_age = call, timeout, max_age
        self._lock = threading.Lock()
        self._future: Future[T] | None = None
        self._started_at = self._ended_at = 0.0

    def result(self) -> T | None:
        """Return the result, or None if the call failed or does not end in time."""
        future = self._current()
        wait([future], timeout=max(self._started_at + self._timeout - time.monotonic(), 0.0))
        if not future.done() or future.exception() is not None:
            return None
        return future.result()

    def _current(self) -> Future[T]:
        with self._lock:
            if self._future is None or (self._future.done() and self._is_old()):
                self._future, self._started_at = Future(), time.monotonic()
                threading.Thread(
                    target=self._run, args=(self._future,), name="dynbeat-metrics-read", daemon=True
                ).start()
            return self._future

    def _is_old(self) -> bool:
        return time.monotonic() - self._ended_at >= self._max_age

    def _run(self, future: Future[T]) -> None:
        try:
            result = self._call()
        # Any error: the caller gets None.
        except BaseException as error:  # noqa: BLE001
            self._ended_at = time.monotonic()
            future.set_exception(error)
        else:
            self._ended_at = time.monotonic()
            future.set_result(result)
