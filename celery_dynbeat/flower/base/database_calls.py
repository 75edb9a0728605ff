"""Run the calls of the API in threads, so that Tornado's loop never waits for the database."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")

#: Calls that run at the same time. The pool of SQLAlchemy has 15 connections by default.
MAX_CALLS = 8


class DatabaseCalls:
    """Threads for database calls. Flower's own executor allows five calls and serves its pages."""

    def __init__(self, *, timeout: float) -> None:
        self._executor = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="dynbeat-flower")
        self._timeout = timeout

    async def run(self, call: Callable[[], T]) -> T:
        """Return ``call()``. Raises TimeoutError after the time limit, which includes waiting.

        The thread of a call that timed out ends when the driver's own timeout does.
        """
        # run_in_executor() does not pass context variables on.
        context = copy_context()
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, context.run, call)
        return await asyncio.wait_for(future, self._timeout)

    def close(self) -> None:
        """Drop the calls that have not started."""
        self._executor.shutdown(wait=False, cancel_futures=True)
