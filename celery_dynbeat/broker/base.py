"""The interface through which beat publishes runs. ``Publisher`` implements it over kombu."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from celery_dynbeat.broker.publisher import PublishResult
from celery_dynbeat.planning.outgoing_run import OutgoingRun


class RunPublisher(Protocol):
    """The broker operations that beat calls."""

    def connect(self) -> None:
        """Connect to the broker. Raise an error of the transport when it is unreachable."""

    def publish(self, batch: Sequence[OutgoingRun]) -> PublishResult:
        """Publish ``batch`` in order and return the result of each run.

        Raises an error of the transport when the broker is unreachable.
        """

    def queue_of(self, run: OutgoingRun) -> str | None:
        """Return the queue to which ``run`` goes; None if Celery's routes do not name one."""

    def outage_delay(self) -> Callable[[OutgoingRun], datetime | None] | None:
        """Return a function that delays new runs whose queue is out of order, or None.

        The function returns the instant until which beat must not record the run, or None to
        record it now. None in place of the function means: record every run.
        """

    def terminate(self, run_ids: Sequence[str]) -> None:
        """Ask the workers to terminate these runs.

        Raises DispatchError when the broker cannot broadcast the request, and an error of the
        transport when the broker is unreachable.
        """
