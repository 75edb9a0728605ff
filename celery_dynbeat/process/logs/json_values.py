"""Any value as JSON that each parser reads, without a password of a URL.

``json.dumps`` writes NaN and lone surrogates, which strict parsers reject. It raises for other
objects, for circular ones, for keys that are not strings and for integers of many digits.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import date, time
from typing import Any

#: Deeper containers are shown by their type.
MAX_DEPTH = 8
#: Of one field, or of one value in ``extra``. The values after them are left out: a container can
#: be endless, or contain another one many times.
MAX_VALUES = 1_000
#: The depth of a value in ``extra``.
_FIELD_DEPTH = 2
#: Beyond it, Python refuses to convert an integer to text.
_MAX_BITS = 4_000
_PASSWORD = re.compile(r"(://[^\s:/@\"']*:)[^\s/\"']*@")


def dumps(fields: Mapping[str, Any]) -> str:
    """Return a mapping as one line of ASCII. A line break in a value cannot start a line."""
    return json.dumps(json_value(fields), allow_nan=False)


def json_value(
    value: object, within: tuple[int, ...] = (), left: Iterator[int] | None = None
) -> Any:
    """Return ``value`` as JSON has it, or its text.

    ``within`` are the ids of what contains it, ``left`` has an item for each value that may follow.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return _number(value)
    if isinstance(value, (str, date, time)):
        return text_of(value if isinstance(value, str) else value.isoformat())
    if left is None or len(within) <= _FIELD_DEPTH:
        left = iter(range(MAX_VALUES))
    # A container of the application can raise, like the text of an object.
    with suppress(Exception):
        if _is_container(value):
            is_shown = id(value) not in within and len(within) < MAX_DEPTH
            if not is_shown:
                # Its text is not used, because it can have any length.
                return f"<{type(value).__name__}>"
            return _composite(value, (*within, id(value)), left)
    return text_of(value)


def _number(value: float) -> Any:
    # int() and float(): a subclass may have its own text.
    if isinstance(value, int):
        return int(value) if value.bit_length() < _MAX_BITS else hex(value)
    return float(value) if math.isfinite(value) else repr(float(value))


def _is_container(value: object) -> bool:
    is_bytes = isinstance(value, (bytes, bytearray))
    return isinstance(value, (Mapping, Sequence, AbstractSet)) and not is_bytes


def _composite(value: Any, within: tuple[int, ...], left: Iterator[int]) -> Any:
    if isinstance(value, Mapping):
        items = zip(left, value.items(), strict=False)
        return {text_of(key): json_value(each, within, left) for _, (key, each) in items}
    return [json_value(each, within, left) for _, each in zip(left, value, strict=False)]


def text_of(value: object) -> str:
    """Return the text of any object, without passwords of URLs and lone surrogates."""
    try:
        text = str.__str__(value) if isinstance(value, str) else str(value)
    # The text of an object is code of the application.
    except Exception as error:  # noqa: BLE001
        text = f"<{type(value).__name__} without text: {type(error).__name__}>"
    return without_passwords(_without_surrogates(text))


def without_passwords(text: str) -> str:
    """Return ``text`` with ``**`` for each password of a URL in it."""
    return _PASSWORD.sub(r"\1**@", text) if "://" in text else text


def _without_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text
