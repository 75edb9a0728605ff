"""Checks of configured values. PURE.

A check returns the value, or raises ValueError with the rule that the value breaks.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias

Check: TypeAlias = Callable[[object], Any]
#: The present instant plus this duration is a date that each database can store.
MAX_DURATION = timedelta(days=36_525)
MAX_NAME_LENGTH = 255


def check(rule: str, is_valid: Callable[[Any], bool]) -> Check:
    """Return a check with one rule."""

    def checked(value: object) -> Any:
        if not is_valid(value):
            raise ValueError(rule)
        return value

    return checked


def is_whole(value: object, *, least: int, most: int | None = None) -> bool:
    """Return whether a value is a whole number between two bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return least <= value and (most is None or value <= most)


def is_name(value: object) -> bool:
    """Return whether a value is a text that a column for names can have."""
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME_LENGTH


def seconds_of(value: object) -> float | None:
    """Return the seconds of a number or a timedelta, or None for any other value."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
