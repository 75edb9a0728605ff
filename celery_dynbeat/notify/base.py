"""What wakes beat when a schedule changes. Late or lost is allowed: beat polls all the same."""

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
    """Beat's side: calls ``wake`` from a thread of its own, after each committed change."""

    @property
    def transport(self) -> Transport:
        """How this beat receives notifications at present."""

    def start(self) -> None:
        """Begin to listen; a failure is logged and mended by itself, never raised."""

    def stop(self) -> None:
        """Stop listening, within a few seconds. May be called twice."""


def reconnect_back_off(*, first: float = 1.0) -> BackOff:
    """Return the delays between the attempts of one listener to connect, in seconds."""
    return BackOff(first=first, maximum=30.0, jitter=0.25)


class Notifier(Protocol):
    """One way to tell beat of a change."""

    def notify(self, session: Session) -> None:
        """Wake the beats when the transaction of ``session`` commits; not when it rolls back."""

    def listener(self, wake: Callable[[], None]) -> Listener:
        """Return beat's side of this way."""
