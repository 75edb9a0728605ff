"""Waiting for what another process or thread will do; the only place in the suite that sleeps."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.02


def wait_until(
    condition: Callable[[], T | None],
    *,
    within: float,
    message: str = "the condition did not become true",
) -> T:
    """Return the first truthy value of ``condition``, asked again and again for ``within`` seconds.

    It is asked once more after the deadline, so a machine that stalls for long does not fail a
    condition that holds. An exception of the condition is the caller's own. Raises AssertionError
    with ``message`` and the last value.
    """
    deadline = time.monotonic() + within
    while True:
        last_chance = time.monotonic() >= deadline
        value = condition()
        if value:
            return value
        if last_chance:
            reason = f"{message} (within {within:g} s; last value: {value!r})"
            raise AssertionError(reason)
        time.sleep(POLL_SECONDS)


def holds_for(condition: Callable[[], bool], *, seconds: float) -> bool:
    """Return whether ``condition`` holds for so long; False as soon as it does not."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not condition():
            return False
        time.sleep(POLL_SECONDS)
    return condition()
