"""No notice at all: beat looks for itself, at most dynbeat_poll_interval later."""

from collections.abc import Callable

from sqlalchemy.orm import Session

from celery_dynbeat.notify.base import Transport


class NullListener:
    """A listener that receives nothing."""

    transport = Transport.POLLING

    def start(self) -> None:
        """Nothing to listen to."""

    def stop(self) -> None:
        """Nothing to stop."""


class PollingNotifier:
    """Tells nobody."""

    def notify(self, session: Session) -> None:
        """Do nothing."""
        del session

    def listener(self, wake: Callable[[], None]) -> NullListener:
        """Return a listener that never wakes."""
        del wake
        return NullListener()
