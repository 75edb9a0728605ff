"""What wakes beat when a schedule changes. Late or lost is allowed: beat polls all the same."""

from collections.abc import Callable
from typing import Protocol

from sqlalchemy.orm import Session


class Listener(Protocol):
    """Beat's side: calls ``wake`` from a thread of its own, after each committed change."""

    def start(self) -> None:
        """Begin to listen; a failure is logged and mended by itself, never raised."""

    def stop(self) -> None:
        """Stop listening, within a few seconds. May be called twice."""


class Notifier(Protocol):
    """One way to tell beat of a change."""

    def announce(self, session: Session) -> None:
        """Wake the beats when the transaction of ``session`` commits; not when it rolls back."""

    def listener(self, wake: Callable[[], None]) -> Listener:
        """Return beat's side of this way."""
