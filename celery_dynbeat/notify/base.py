"""What wakes beat when a schedule changes. Late or lost is allowed: beat polls all the same."""

import random
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from sqlalchemy.orm import Session


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


class BackOff:
    """How long a listener waits before it connects again: each time twice as long, to a limit."""

    def __init__(self, *, first: float = 1.0, longest: float = 30.0) -> None:
        self._first, self._longest = first, longest
        self._failures = 0

    def succeeded(self) -> None:
        """Begin anew: the listener was connected."""
        self._failures = 0

    def failed(self) -> float:
        """Return how many seconds to wait now."""
        # No further than any limit needs: the power has to stay a float.
        longest: float = min(self._first * 2 ** min(self._failures, 16), self._longest)
        self._failures += 1
        # Several beats that lost the same server should not come back as one.
        return longest * random.uniform(0.75, 1)  # noqa: S311 - not a secret


class Notifier(Protocol):
    """One way to tell beat of a change."""

    def notify(self, session: Session) -> None:
        """Wake the beats when the transaction of ``session`` commits; not when it rolls back."""

    def listener(self, wake: Callable[[], None]) -> Listener:
        """Return beat's side of this way."""
