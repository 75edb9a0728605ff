"""Waiting for an answer that the next step does not need, beside that step."""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

from celery_dynbeat.events import Event

logger = logging.getLogger(__name__)

Job = Callable[[], None]
#: At the end, what does not answer within so many seconds is left to itself.
CLOSES_WITHIN = 5.0


class Jobs(Protocol):
    """Where jobs are done, one after the other."""

    def begin(self, job: Job) -> None:
        """Wait for the job before and begin this one. Raises what the one before has raised."""

    def settle(self) -> None:
        """Wait for the job that was begun last. Raises what it has raised, once."""

    def check(self) -> None:
        """Raise what the job that was begun last has raised, without waiting for it."""

    def close(self) -> None:
        """Begin nothing any more, and wait a little for what was begun. Raises nothing."""


class AtOnce:
    """Does each job when it is told of it, for those to whom the order is all."""

    def begin(self, job: Job) -> None:
        """Do the job. Raises what it raises."""
        job()

    def settle(self) -> None:
        """There is nothing to wait for."""

    def check(self) -> None:
        """There is nothing to raise."""

    def close(self) -> None:
        """There is nothing to wait for."""


class Beside:
    """Does each job in a thread of its own: worth it for one that mostly waits."""

    def __init__(self) -> None:
        self._told: SimpleQueue[tuple[Future[None], Job] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._begun: Future[None] | None = None

    def begin(self, job: Job) -> None:
        """Wait for the job before and begin this one. Raises what the one before has raised."""
        self.settle()
        if self._thread is None:
            # A daemon: a server that does not answer must not keep the process from its end.
            self._thread = Thread(target=self._work, name="dynbeat-beside", daemon=True)
            self._thread.start()
        self._begun = Future()
        self._told.put((self._begun, job))

    def _work(self) -> None:
        while (told := self._told.get()) is not None:
            begun, job = told
            try:
                job()
            # Of whatever kind: it is raised again where somebody waits for it.
            except BaseException as error:  # noqa: BLE001
                begun.set_exception(error)
            else:
                begun.set_result(None)

    def settle(self) -> None:
        """Wait for the job that was begun last. Raises what it has raised, once."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.result()

    def check(self) -> None:
        """Raise what the job that was begun last has raised, without waiting for it."""
        if self._begun is not None and self._begun.done():
            self.settle()

    def close(self) -> None:
        """Begin nothing any more, and wait a little for what was begun. Raises nothing."""
        self._told.put(None)
        begun, self._begun = self._begun, None
        if begun is None:
            return
        try:
            begun.result(CLOSES_WITHIN)
        # The end goes on; what was not confirmed is sent once more, and starts once.
        except Exception as error:  # noqa: BLE001
            logger.warning(
                "the last runs were not confirmed, and may be sent again: %s: %s",
                type(error).__name__,
                error,
                extra={"event": Event.CONFIRM_UNKNOWN},
            )
