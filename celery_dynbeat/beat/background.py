"""Executors for the confirm of a batch: in the calling thread, or in a background thread.

An executor runs one call at a time, in order. The caller learns of an error at its next call of
``submit``, ``check`` or ``result``.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

from celery_dynbeat.common.events import Event

logger = logging.getLogger(__name__)

Call = Callable[[], None]
#: ``close`` waits this many seconds for the last call.
CLOSE_TIMEOUT = 5.0


class Executor(Protocol):
    """Runs calls one after the other."""

    def submit(self, call: Call) -> None:
        """Wait for the previous call, then start this one. Raises the error of the previous one."""

    def result(self) -> None:
        """Wait for the last call. Raises its error, once."""

    def check(self) -> None:
        """Raise the error of the last call if it has ended, once. Does not wait."""

    def close(self) -> None:
        """Accept no more calls and wait for the last one, up to CLOSE_TIMEOUT. Logs its error."""


class InlineExecutor:
    """Runs each call in the calling thread, within ``submit``."""

    def submit(self, call: Call) -> None:
        """Run the call. Raises its error."""
        call()

    def result(self) -> None:
        """Do nothing: ``submit`` has raised the error."""

    def check(self) -> None:
        """Do nothing: ``submit`` has raised the error."""

    def close(self) -> None:
        """Do nothing: no call is running."""


class BackgroundExecutor:
    """Runs each call in one background thread. It is for calls that mostly wait.

    Not a ThreadPoolExecutor: the interpreter joins its threads at exit, also one that hangs.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Future[None], Call] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._future: Future[None] | None = None

    def submit(self, call: Call) -> None:
        """Wait for the previous call, then start this one. Raises the error of the previous one."""
        self.result()
        if self._thread is None:
            # A daemon thread: a server that does not respond must not block the exit.
            self._thread = Thread(target=self._work, name="dynbeat-confirm", daemon=True)
            self._thread.start()
        self._future = Future()
        self._queue.put((self._future, call))

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            _run(*item)
            # Free the call while the thread waits for the next one.
            del item

    def result(self) -> None:
        """Wait for the last call. Raises its error, once."""
        future, self._future = self._future, None
        if future is not None:
            future.result()

    def check(self) -> None:
        """Raise the error of the last call if it has ended, once. Does not wait."""
        if self._future is not None and self._future.done():
            self.result()

    def close(self) -> None:
        """Accept no more calls and wait for the last one, up to CLOSE_TIMEOUT. Logs its error."""
        self._queue.put(None)
        future, self._future = self._future, None
        if future is None:
            return
        ended, _ = wait([future], timeout=CLOSE_TIMEOUT)
        error = future.exception() if ended else TimeoutError(f"no answer in {CLOSE_TIMEOUT:g} s")
        if error is not None and not isinstance(error, Exception):
            raise error
        if error is not None:
            # Beat stops in any case. The sweep publishes the runs again, and each starts once.
            logger.warning(
                "the last runs were not confirmed and may be sent again: %s: %s",
                type(error).__name__,
                error,
                extra={"event": Event.CONFIRM_UNKNOWN},
            )


def _run(future: Future[None], call: Call) -> None:
    try:
        call()
    # Any error: the caller of ``result`` raises it.
    except BaseException as error:  # noqa: BLE001
        future.set_exception(error)
    else:
        future.set_result(None)
