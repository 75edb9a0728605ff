"""Where runs leave beat, as a seam: the Publisher, or what takes its place in a test."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from celery_dynbeat.broker.publisher import Published
from celery_dynbeat.planning.outgoing_run import OutgoingRun


class RunPublisher(Protocol):
    """What beat needs of a broker."""

    def connect(self) -> None:
        """Be ready to publish, or raise."""

    def publish(self, batch: Sequence[OutgoingRun]) -> Published:
        """Hand ``batch`` over and tell what was taken; raise when nothing can be."""

    def hold(self) -> Callable[[OutgoingRun], datetime | None] | None:
        """Return what says until when a new run is not to be recorded, or None: record all."""

    def terminate(self, run_ids: Sequence[str]) -> None:
        """Ask the workers to end these runs.

        Raises DispatchError when the broker does not carry the request, anything else when it is
        away.
        """
