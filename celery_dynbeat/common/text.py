"""Limits of arguments, and texts in messages: quoted values, counts, durations, English words.

JSON that people write: a repeated key is an error. ``json.loads`` would keep its last value.
"""

import difflib
import json
import re
import shlex
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

#: The number of characters of a value that an error message shows, which is one line of a terminal.
_SHOWN = 80
#: UUIDs, hexadecimal ids of at least six characters, and numbers. A hexadecimal id has a digit:
#: ``decade`` is a word.
_IDS = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|0x[0-9a-f]+"
    r"|(?<![0-9a-z])(?=[a-f]*[0-9])[0-9a-f]{6,}(?![0-9a-z])|\d+",
    re.IGNORECASE,
)
#: The characters of a first line.
_LINE_LENGTH = 200
#: English, and not from ``calendar``, whose names depend on the locale. January is at index 0.
MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
#: Monday is at index 0, as in ``date.weekday``.
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
#: Shorter secrets are often parts of other words.
MIN_SECRET_LENGTH = 5
_ORDINAL_SUFFIXES = {1: "st", 2: "nd", 3: "rd"}
_TEENS = (11, 12, 13)
#: Some editors write this mark at the start of a file in UTF-8.
BYTE_ORDER_MARK = "\ufeff"
_UNITS_IN_WORDS = (("hour", 3600), ("minute", 60))


def described_owner(owner: str) -> str:
    """Return an owner, in words."""
    return f"owner {owner!r}"


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


def suggestion(name: object, known: Iterable[str]) -> str:
    """Return "did you mean backoff?" for a name that is not among ``known``, or the known names."""
    names = list(known)
    near = difflib.get_close_matches(str(name)[:_SHOWN], names, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"


def as_text(value: object) -> object:
    """Return the name of a ZoneInfo, the text of a lazy string of Django, or else ``value``."""
    if isinstance(value, ZoneInfo):
        return value.key
    # Only a program that has imported Django can have such a string.
    django = sys.modules.get("django.utils.functional")
    return str(value) if django is not None and isinstance(value, django.Promise) else value


def counted(number: int, noun: str) -> str:
    """Return the number with its noun: ``1 run``, ``2,000 runs``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def first_line(text: str | None) -> str:
    """Return the first line of an error or a reason, cut, or "" without one."""
    return cut((text or "").strip().partition("\n")[0], _LINE_LENGTH)


def error_cause(error: str | None) -> str:
    """Return the first line of an error with ``#`` in place of each number and random id."""
    return _IDS.sub("#", (error or "").strip().partition("\n")[0])


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


#: The characters of an owner, a name, and each other short text.
NAME_LENGTH = 255
#: The maximum number of characters of a task's note about its run.
NOTE_LENGTH = 500
#: The highest number that the databases store. Manual SQL can write it.
MAX_COUNT = 2**63 - 1
#: The items of a page.
MAX_PAGE_SIZE = 1_000
#: The runs of a batch.
MAX_BATCH = 10_000
#: The runs that one call cancels.
MAX_CANCELLED = 100_000
#: Fire times lie in these years. There, conversion to a zone cannot leave the range of datetime.
FIRST_YEAR, LAST_YEAR = 1900, 9899
EARLIEST = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC)
LATEST = datetime(LAST_YEAR + 1, 1, 1, tzinfo=UTC)


#: Control characters, lone surrogates, line and paragraph separators, and invisible characters
#: such as those that reverse the direction of the text.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
#: They join the parts of an emoji, and letters of Persian and of Indian scripts.
_JOINERS = frozenset("\u200c\u200d")
_NAMED = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def escape(text: str) -> str:
    """Return ``text`` on one line, with escapes for control and direction characters."""
    if text.isprintable():
        return text
    return "".join(_escape_one(character) for character in text)


def _escape_one(character: str) -> str:
    if character.isprintable() or character in _JOINERS:
        return character
    if character in _NAMED:
        return _NAMED[character]
    if unicodedata.category(character) not in _UNSAFE:
        return character
    code = ord(character)
    if code <= 0xFF:  # noqa: PLR2004 - two hexadecimal digits
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004


class RepeatedKeyError(ValueError):
    """An object of the text has the key ``key`` twice."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {shorten(key)} occurs twice in one object; give it once")
        self.key = key


def hide_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return ``text`` with ``***`` in place of each secret, in any case.

    A short secret is hidden only where no letter or digit is next to it, so that other words stay
    whole.
    """
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        found = re.escape(secret)
        if len(secret) < MIN_SECRET_LENGTH:
            found = rf"(?<!\w){found}(?!\w)"
        text = re.sub(found, "***", text, flags=re.IGNORECASE)
    return text


def load_json(text: str) -> Any:
    """Return the value of ``text``.

    Raises RepeatedKeyError, and the errors of ``json.loads``: ValueError and RecursionError.
    """
    return json.loads(text, object_pairs_hook=_with_unique_keys)


def _with_unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for key, inner in pairs:
        if key in value:
            raise RepeatedKeyError(key)
        value[key] = inner
    return value


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
    for unit, size in _UNITS_IN_WORDS:
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
