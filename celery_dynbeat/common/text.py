"""Quote values and count things in messages."""

import re
import shlex
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from celery_dynbeat.common.durations import format_seconds

#: The number of characters that an error message shows of a value: one line of a terminal.
_SHOWN = 80
_NUMBERS = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|0x[0-9a-f]+|\d+",
    re.IGNORECASE,
)


def shorten(value: object) -> str:
    """Return the repr of a value for an error message, cut so that any input is short and cheap.

    An instant is shown as ISO 8601 text, a timedelta in seconds.
    """
    text = ""
    try:
        for piece in _pieces(value):
            text += piece
            if len(text) > _SHOWN:
                break
    # An integer with more digits than Python prints, or a __repr__ that raises.
    except Exception:  # noqa: BLE001
        text = f"of type {type(value).__name__}"
    return cut(text, _SHOWN)


def cut(text: str, length: int) -> str:
    """Return ``text`` with at most ``length`` characters. A cut text ends with three dots."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def as_text(value: object) -> object:
    """Return the name of a ZoneInfo, the text of a lazy string of Django, else ``value``."""
    if isinstance(value, ZoneInfo):
        return value.key
    # Only a program that has imported it can have one.
    django = sys.modules.get("django.utils.functional")
    return str(value) if django is not None and isinstance(value, django.Promise) else value


def counted(number: int, noun: str) -> str:
    """Return the number with its noun: ``1 run``, ``2,000 runs``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def error_cause(error: str | None) -> str:
    """Return the first line of an error with ``#`` in place of each number and UUID."""
    return _NUMBERS.sub("#", (error or "").strip().partition("\n")[0])


def with_application(text: str, application: str | None) -> str:
    """Return a text with ``application``, the value of ``-A``, in the commands that it names."""
    if application is None:
        return text
    return text.replace("celery -A your_app", f"celery -A {shlex.quote(application)}")


def _pieces(value: object) -> Iterator[str]:
    """Yield the repr of ``value`` in pieces, so that the caller can stop before a large rest."""
    if isinstance(value, (str, bytes, bytearray)):
        yield repr(value[: _SHOWN + 1])
    elif isinstance(value, datetime):
        yield str(value)
    elif isinstance(value, timedelta):
        yield format_seconds(value)
    elif isinstance(value, dict):
        yield "{"
        for number, (key, inner) in enumerate(value.items()):
            yield ", " if number else ""
            yield from _pieces(key)
            yield ": "
            yield from _pieces(inner)
        yield "}"
    elif isinstance(value, (list, tuple)):
        yield "[" if isinstance(value, list) else "("
        for number, inner in enumerate(value):
            yield ", " if number else ""
            yield from _pieces(inner)
        yield "]" if isinstance(value, list) else ")"
    else:
        yield repr(value)
