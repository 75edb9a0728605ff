"""Waiting for an answer that the next step does not need, beside that step."""

import logging
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread
from typing import Protocol

from celery_dynbeat.common import events

logger = logging.getLogger(__name__)

Call = Callable[[], None]
#: At the end, what does not answer within so many seconds is left to itself.
CLOSE_TIMEOUT = 5.0


class Calls(Protocol):
    """Where calls are made, one after the other."""

    def begin(self, call: Call) -> None:
        """Wait for the call before and begin this one. Raises what the one before has raised."""

    def settle(self) -> None:
        """Wait for the call that was begun last. Raises what it has raised, once."""

    def check(self) -> None:
        """Raise what the call that was begun last has raised, without waiting for it."""

    def close(self) -> None:
        """Begin nothing any more, and wait a little for what was begun. Raises nothing."""


class AtOnce:
    """Makes each call when it is told of it, for those to whom the order is all."""

    def begin(self, call: Call) -> None:
        """Make the call. Raises what it raises."""
        call()

    def settle(self) -> None:
        """There is nothing to wait for."""

    def check(self) -> None:
        """There is nothing to raise."""

    def close(self) -> None:
        """There is nothing to wait for."""


class _Begun:
    """A call that is made elsewhere."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._ended = Event()
        self._error: BaseException | None = None

    def make(self) -> None:
        try:
            self._call()
        # Of whatever kind: it is raised again where somebody waits for it.
        except BaseException as error:  # noqa: BLE001
            self._error = error
        self._ended.set()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def wait(self, seconds: float | None = None) -> None:
        if not self._ended.wait(seconds):
            raise TimeoutError(f"no answer within {seconds:g} s")
        if self._error is not None:
            raise self._error


class Beside:
    """Makes each call in a thread of its own: worth it for one that mostly waits."""

    def __init__(self) -> None:
        self._told: SimpleQueue[_Begun | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._begun: _Begun | None = None

    def begin(self, call: Call) -> None:
        """Wait for the call before and begin this one. Raises what the one before has raised."""
        self.settle()
        if self._thread is None:
            # A daemon: a server that does not answer must not keep the process from its end.
            self._thread = Thread(target=self._work, name="dynbeat-beside", daemon=True)
            self._thread.start()
        self._begun = _Begun(call)
        self._told.put(self._begun)

    def _work(self) -> None:
        while (begun := self._told.get()) is not None:
            begun.make()
            # Not kept until the next one comes.
            del begun

    def settle(self) -> None:
        """Wait for the call that was begun last. Raises what it has raised, once."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.wait()

    def check(self) -> None:
        """Raise what the call that was begun last has raised, without waiting for it."""
        if self._begun is not None and self._begun.has_ended:
            self.settle()

    def close(self) -> None:
        """Begin nothing any more, and wait a little for what was begun. Raises nothing."""
        self._told.put(None)
        begun, self._begun = self._begun, None
        if begun is None:
            return
        try:
            begun.wait(CLOSE_TIMEOUT)
        # The end goes on; what was not confirmed is sent once more, and starts once.
        except Exception as error:  # noqa: BLE001
            logger.warning(
                "the last runs were not confirmed, and may be sent again: %s: %s",
                type(error).__name__,
                error,
                extra={"event": events.Event.CONFIRM_UNKNOWN},
            )
