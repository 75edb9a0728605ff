"""Where runs leave beat, as a seam: the Publisher, or what takes its place in a test."""

import logging
from collections.abc import Sequence
from typing import Protocol

from celery_dynbeat.events import Event
from celery_dynbeat.messages import Outgoing
from celery_dynbeat.publish import Published

logger = logging.getLogger(__name__)


class Outlet(Protocol):
    """What beat needs of a broker."""

    def connect(self) -> None:
        """Be ready to publish, or raise."""

    def publish(self, batch: Sequence[Outgoing]) -> Published:
        """Hand ``batch`` over and tell what was taken; raise when nothing can be."""

    def terminate(self, run_ids: Sequence[str]) -> None:
        """Ask the workers to end these runs, or raise when nobody can be asked."""


def terminate(outlet: Outlet, run_ids: Sequence[str]) -> None:
    """Ask the workers to end these runs; a failure is logged, and asked again in a later round."""
    if not run_ids:
        return
    try:
        outlet.terminate(run_ids)
    # Of whatever kind: the runs end by themselves, and their successors must go out.
    except Exception as error:  # noqa: BLE001
        logger.warning(
            "%s runs not terminated: %s",
            len(run_ids),
            error,
            extra={"event": Event.TERMINATE_FAILED},
        )
