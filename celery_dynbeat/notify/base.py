"""The interfaces that wake beat when a schedule changes.

A notification may be late or lost: beat polls as well.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from sqlalchemy.orm import Session

from celery_dynbeat.common.back_off import BackOff


class Transport(StrEnum):
    """How a beat receives notifications."""

    POSTGRESQL = "postgresql"
    BROKER = "broker"
    POLLING = "polling"


class Listener(Protocol):
    """The receiver in beat. Calls ``wake`` from its own thread after each committed change."""

    @property
    def transport(self) -> Transport:
        """The transport that this beat uses now."""

    def start(self) -> None:
        """Start to listen. The listener logs an error, reconnects and never raises."""

    def stop(self) -> None:
        """Stop listening within a few seconds. May be called twice."""


def reconnect_back_off(*, first: float = 1.0) -> BackOff:
    """Return the delays between the attempts of one listener to connect, in seconds."""
    return BackOff(first=first, maximum=30.0, jitter=0.25)


class Notifier(Protocol):
    """The sender of change notifications."""

    def notify(self, session: Session) -> None:
        """Wake the beats when the transaction of ``session`` commits. A rollback sends nothing."""

    def listener(self, wake: Callable[[], None]) -> Listener:
        """Return the receiver for beat."""
