"""No notifications: beat sees a change at its next poll, after dynbeat_poll_interval at most."""

from collections.abc import Callable

from sqlalchemy.orm import Session

from celery_dynbeat.notify.base import Transport


class NullListener:
    """A listener that receives nothing."""

    transport = Transport.POLLING

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


class PollingNotifier:
    """Sends no notifications."""

    def notify(self, session: Session) -> None:
        """Do nothing."""
        del session

    def listener(self, wake: Callable[[], None]) -> NullListener:
        """Return a listener that never wakes."""
        del wake
        return NullListener()
