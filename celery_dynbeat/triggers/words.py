"""Durations in words."""

from datetime import timedelta

_UNITS = (("hour", 3600), ("minute", 60))


def describe_duration(interval: timedelta) -> str:
    """Say elapsed time, in hours at most: ``every 5 minutes``, ``every 1 hour 30 minutes``."""
    said = say_duration(interval)
    number, _, unit = said.partition(" ")
    return f"every {unit}" if number == "1" and " " not in unit else f"every {said}"


def say_duration(interval: timedelta) -> str:
    """Say elapsed time, in hours at most: ``1 hour 30 minutes``."""
    seconds = interval // timedelta(seconds=1)
    parts = []
    for unit, size in _UNITS:
        count, seconds = divmod(seconds, size)
        if count:
            parts.append((str(count), unit))
    fraction = f".{interval.microseconds:06}".rstrip("0") if interval.microseconds else ""
    if seconds or fraction:
        parts.append((f"{seconds}{fraction}", "second"))
    words = (f"{count} {unit}" if count == "1" else f"{count} {unit}s" for count, unit in parts)
    return " ".join(words)


def describe_calendar(unit: str, count: int) -> str:
    """Say ``every month`` or ``every 2 weeks``; ``unit`` is a plural."""
    return f"every {unit[:-1]}" if count == 1 else f"every {count} {unit}"
