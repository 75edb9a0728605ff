"""Cache where a rule with COUNT ends.

Counting a rule takes up to PREPARATION_STEPS, and beat may need thousands of rules each second. An
entry takes about 250 bytes, because it contains the last wall time and the steps, but not the rule.
"""

import hashlib
from collections.abc import Callable
from threading import Lock
from typing import NamedTuple

from celery_dynbeat.triggers.rrule.rule import RecurrenceRule, format_rule

#: These take 4 MB. One trigger adds at most 200 entries.
_MAX_ENTRIES = 16_384


class CountEnd(NamedTuple):
    """The last wall time of a rule with COUNT, in seconds, and the steps to count it."""

    last: int
    steps: int


class CountCache:
    """The most recently used rules. Threads may share it."""

    def __init__(self, max_entries: int = _MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._counted: dict[bytes, CountEnd] = {}
        self._lock = Lock()

    def get(self, rule: RecurrenceRule, start: int, count: Callable[[], CountEnd]) -> CountEnd:
        """Return the end of ``rule`` counted from ``start``. ``count`` finds it if not cached."""
        # A digest is smaller than the rule. Its 128 bits make a collision practically impossible.
        text = f"{start} {format_rule(rule)}"
        key = hashlib.blake2b(text.encode(), digest_size=16).digest()
        with self._lock:
            cached = self._counted.pop(key, None)
            if cached is not None:
                # The oldest entry is dropped first, so a used entry moves to the end.
                self._counted[key] = cached
                return cached
        counted = count()
        with self._lock:
            self._counted[key] = counted
            if len(self._counted) > self._max_entries:
                del self._counted[next(iter(self._counted))]
        return counted

    def clear(self) -> None:
        """Drop all entries."""
        with self._lock:
            self._counted.clear()


COUNT_CACHE = CountCache()
