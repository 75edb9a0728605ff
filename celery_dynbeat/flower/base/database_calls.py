"""Run the calls of the API in threads, so that Tornado's loop never waits for the database."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")

#: Calls that run at the same time. The pool of SQLAlchemy has 15 connections by default.
MAX_CALLS = 8
#: Pages in progress. A further call would wait for longer than a person does.
MAX_PAGES = 24


class SharedProbe:
    """A slow call in a separate thread. Requests that wait share one result.

    The call is therefore the same for all databases.
    """

    def __init__(self, name: str, *, timeout: float) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._probe: asyncio.Future[Any] | None = None
        self._probed_at = 0.0
        self._timeout = timeout

    async def run(self, call: Callable[[], T], *, max_age: float = 0) -> T:
        """Return ``call()``. A result of up to ``max_age`` seconds is returned again.

        Raises TimeoutError after the time limit.
        """
        age = time.monotonic() - self._probed_at
        if self._probe is None or (self._probe.done() and age >= max_age):
            self._probed_at = time.monotonic()
            loop = asyncio.get_running_loop()
            self._probe = loop.run_in_executor(self._executor, call)
        found: T = await asyncio.wait_for(asyncio.shield(self._probe), self._timeout)
        return found

    def last(self, *, max_age: float) -> Any:
        """Return a result from the last ``max_age`` seconds, or None if there is none."""
        probe, age = self._probe, time.monotonic() - self._probed_at
        if probe is None or not probe.done() or probe.exception() is not None or age > max_age:
            return None
        return probe.result()

    def close(self) -> None:
        """Drop a call that has not started."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class DatabaseCalls:
    """Threads for database calls. Flower's own executor allows five calls and serves its pages."""

    def __init__(self, *, timeout: float) -> None:
        self._executor = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="dynbeat-flower")
        # A probe of a server that hangs takes seconds.
        self.health = SharedProbe("dynbeat-flower-probe", timeout=timeout)
        self.forecast = SharedProbe("dynbeat-flower-forecast", timeout=timeout)
        self._timeout = timeout
        self.pages_in_progress = 0

    async def run(self, call: Callable[[], T]) -> T:
        """Return ``call()``. Raises TimeoutError after the time limit, which includes waiting.

        The thread of a call that timed out ends with the driver's timeout.
        """
        # run_in_executor() does not pass context variables on.
        context = copy_context()
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, context.run, call)
        return await asyncio.wait_for(future, self._timeout)

    def close(self) -> None:
        """Drop the calls that have not started."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self.health.close()
        self.forecast.close()
