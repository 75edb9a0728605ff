"""Durations as text for people."""

from datetime import datetime, timedelta

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60))
#: A duration is shown in the largest unit of which it has at least this number.
_MIN_UNITS = 2
_TEN_SECONDS = 10


def format_duration(value: timedelta) -> str:
    """Return ``4 d``, ``3 h``, ``5 min``, ``90 s``, ``1.25 s`` or ``32 ms``, rounded."""
    seconds = value.total_seconds()
    for name, size in _UNITS:
        if abs(seconds) >= _MIN_UNITS * size:
            return f"{seconds / size:.0f} {name}"
    if abs(seconds) >= _TEN_SECONDS:
        return f"{seconds:.0f} s"
    return f"{seconds:.3g} s" if abs(seconds) >= 1 else f"{seconds * 1000:.0f} ms"


def format_seconds(value: timedelta) -> str:
    """Return ``300 s``, ``0.5 s`` or ``-60 s``: exact, for a limit and the value that breaks it."""
    text = f"{abs(value) // timedelta(seconds=1)}.{abs(value).microseconds:06}"
    return f"{'-' if value < timedelta() else ''}{text.rstrip('0').rstrip('.')} s"


def format_distance(instant: datetime, *, now: datetime) -> str:
    """Return ``in 5 min``, ``5 min ago`` or ``now``."""
    if abs(instant - now) < timedelta(seconds=1):
        return "now"
    shown = format_duration(abs(instant - now))
    return f"in {shown}" if instant > now else f"{shown} ago"
