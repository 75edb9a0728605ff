"""Wait for a condition that another process or thread causes. Only this module sleeps in tests."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.02
#: How many times as long ``wait_until`` waits as it says: a passing test takes no longer.
PATIENCE = 3


def wait_until(
    condition: Callable[[], T | None],
    *,
    within: float,
    message: str = "the condition did not become true",
    every: float = POLL_SECONDS,
) -> T:
    """Call ``condition`` for ``within * PATIENCE`` seconds, and return its first truthy value.

    It is called once more after the deadline, so that a stalled machine does not fail a condition
    that is true. Exceptions of the condition propagate. Raises AssertionError with ``message`` and
    the last value.
    """
    deadline = time.monotonic() + PATIENCE * within
    while True:
        last_chance = time.monotonic() >= deadline
        value = condition()
        if value:
            return value
        if last_chance:
            reason = f"{message} (within {within:g} s; last value: {value!r})"
            raise AssertionError(reason)
        time.sleep(every)


def holds_for(condition: Callable[[], bool], *, seconds: float) -> bool:
    """Return whether ``condition`` stays true for ``seconds``; False as soon as it is not."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not condition():
            return False
        time.sleep(POLL_SECONDS)
    return condition()
