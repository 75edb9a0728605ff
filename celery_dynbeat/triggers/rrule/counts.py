"""Where the COUNT of a rule ends, remembered.

To count a rule through takes up to ``PREPARATION`` steps, and beat may have to ask thousands of
them each second. What is remembered is small: the last wall time and the steps that it took, not
the rule. An entry takes about 250 bytes.
"""

import hashlib
from collections.abc import Callable
from threading import Lock
from typing import NamedTuple

from celery_dynbeat.triggers.rrule.parts import Rule, format_rule

#: 4 MB. A schedule with a separate budget fills 200 at most.
_MOST_ENTRIES = 16_384


class Counted(NamedTuple):
    """The last wall time of a rule with COUNT, in seconds, and the steps that counting took."""

    last: int
    steps: int


class Counts:
    """The rules that were counted last. Threads may share it."""

    def __init__(self, most: int = _MOST_ENTRIES) -> None:
        self._most = most
        self._counted: dict[bytes, Counted] = {}
        self._lock = Lock()

    def get(self, rule: Rule, start: int, count: Callable[[], Counted]) -> Counted:
        """Return what ``count`` returned, or returns, for ``rule`` counted from ``start``."""
        # A digest is smaller than the rule, and two rules never share one.
        text = f"{start} {format_rule(rule)}"
        key = hashlib.blake2b(text.encode(), digest_size=16).digest()
        with self._lock:
            found = self._counted.pop(key, None)
            if found is not None:
                # The last place is for what was asked last.
                self._counted[key] = found
                return found
        counted = count()
        with self._lock:
            self._counted[key] = counted
            if len(self._counted) > self._most:
                del self._counted[next(iter(self._counted))]
        return counted

    def clear(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._counted.clear()


COUNTS = Counts()
