"""English words that several descriptions share.

The names of months and days are not from ``calendar``: those depend on the locale of the process.
"""

from collections.abc import Sequence
from datetime import timedelta

#: January at index 0.
MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
#: Monday at index 0, as in ``date.weekday``.
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_ORDINAL_SUFFIXES = {1: "st", 2: "nd", 3: "rd"}
_TEENS = (11, 12, 13)
_UNITS = (("hour", 3600), ("minute", 60))


def join_words(words: Sequence[str], *, last: str = "and") -> str:
    """Return ``a, b and c``; ``last`` is the word before the last item."""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def ordinal(number: int) -> str:
    """Return ``1st``, ``22nd`` or ``113th``."""
    suffix = "th" if number % 100 in _TEENS else _ORDINAL_SUFFIXES.get(number % 10, "th")
    return f"{number}{suffix}"


def plural(count: int) -> str:
    """Return the ending of a noun after ``count``: "" or "s"."""
    return "" if count == 1 else "s"


def describe_interval(interval: timedelta) -> str:
    """Return ``every 5 minutes`` or ``every 1 hour 30 minutes``. The longest unit is an hour."""
    words = describe_duration(interval)
    number, _, unit = words.partition(" ")
    return f"every {unit}" if number == "1" and " " not in unit else f"every {words}"


def describe_duration(duration: timedelta) -> str:
    """Return ``1 hour 30 minutes``. The longest unit is an hour."""
    seconds = duration // timedelta(seconds=1)
    parts = []
    for unit, size in _UNITS:
        count, seconds = divmod(seconds, size)
        if count:
            parts.append((str(count), unit))
    fraction = f".{duration.microseconds:06}".rstrip("0") if duration.microseconds else ""
    if seconds or fraction:
        parts.append((f"{seconds}{fraction}", "second"))
    words = (f"{count} {unit}" if count == "1" else f"{count} {unit}s" for count, unit in parts)
    return " ".join(words)


def describe_unit(unit: str, count: int) -> str:
    """Return ``every month`` or ``every 2 weeks``; ``unit`` is singular."""
    return f"every {unit}" if count == 1 else f"every {count} {unit}s"
