"""Waiting for an answer that the next step does not need, beside that step."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

Job = Callable[[], None]


class Jobs(Protocol):
    """Where jobs are done, one after the other."""

    def begin(self, job: Job) -> None:
        """Wait for the job before and begin this one. Raises what the one before has raised."""

    def settle(self) -> None:
        """Wait for the job that was begun last. Raises what it has raised, once."""

    def close(self) -> None:
        """Wait for what was begun, whatever becomes of it, and begin nothing any more."""


class AtOnce:
    """Does each job when it is told of it, for those to whom the order is all."""

    def begin(self, job: Job) -> None:
        """Do the job. Raises what it raises."""
        job()

    def settle(self) -> None:
        """There is nothing to wait for."""

    def close(self) -> None:
        """There is nothing to wait for."""


class Beside:
    """Does each job in a thread of its own: worth it for one that mostly waits."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dynbeat-beside")
        self._begun: Future[None] | None = None

    def begin(self, job: Job) -> None:
        """Wait for the job before and begin this one. Raises what the one before has raised."""
        self.settle()
        self._begun = self._thread.submit(job)

    def settle(self) -> None:
        """Wait for the job that was begun last. Raises what it has raised, once."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.result()

    def close(self) -> None:
        """Wait for what was begun, whatever becomes of it, and begin nothing any more."""
        self._thread.shutdown()
