"""Delays between attempts at something that fails."""

import random

#: 2 to this power exceeds the ratio of any two delays in use, and the product stays a float.
_MAX_DOUBLINGS = 16


class BackOff:
    """Delays in seconds: ``first``, then twice the last one, up to ``maximum``.

    ``jitter`` is the largest share that is subtracted from a delay at random, from 0 to 1. It keeps
    processes that lost the same server from reconnecting at the same instant.
    """

    def __init__(self, *, first: float, maximum: float, jitter: float = 0.0) -> None:
        self._first, self._maximum, self._jitter = first, maximum, jitter
        self._failures = 0

    @property
    def failures(self) -> int:
        """The number of delays since the last ``reset``."""
        return self._failures

    def next_delay(self) -> float:
        """Return the seconds to wait after one more failure."""
        doublings = min(self._failures, _MAX_DOUBLINGS)
        delay: float = min(self._first * 2**doublings, self._maximum)
        self._failures += 1
        return delay * random.uniform(1 - self._jitter, 1)  # noqa: S311 - not a secret

    def reset(self) -> None:
        """Start again with ``first``: an attempt succeeded."""
        self._failures = 0
