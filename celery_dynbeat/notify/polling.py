"""No notice at all: beat looks for itself, at most dynbeat_poll_interval later."""

from collections.abc import Callable

from sqlalchemy.orm import Session

from celery_dynbeat.notify.base import Transport


class _Deaf:
    transport = Transport.POLLING

    def start(self) -> None:
        """Nothing to listen to."""

    def stop(self) -> None:
        """Nothing to stop."""


class PollingNotifier:
    """Tells nobody."""

    def announce(self, session: Session) -> None:
        """Do nothing."""
        del session

    def listener(self, wake: Callable[[], None]) -> _Deaf:
        """Return a listener that never wakes."""
        del wake
        return _Deaf()
