"""Any value as JSON that each parser reads, without a password of a URL.

``json.dumps`` writes NaN and lone surrogates, which strict parsers reject. It raises for other
objects, for circular ones, for keys that are no strings and for integers of many digits.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import date, time
from typing import Any

#: Deeper values are shown as text.
MAX_DEPTH = 8
#: Beyond it, Python refuses to convert an integer to text.
_MAX_BITS = 4_000
_PASSWORD = re.compile(r"(://[^\s:/@\"']*:)[^\s/\"']*@")


def dumps(fields: Mapping[str, Any]) -> str:
    """Return a mapping as one line of ASCII. A line break in a value cannot start a line."""
    return json.dumps(json_value(fields), allow_nan=False)


def json_value(value: object, within: tuple[int, ...] = ()) -> Any:
    """Return ``value`` as JSON has it, or its text. ``within``: the ids of what contains it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return _number(value)
    if isinstance(value, (str, date, time)):
        return text_of(value if isinstance(value, str) else value.isoformat())
    # A container of the application can raise, like the text of an object.
    with suppress(Exception):
        if id(value) not in within and len(within) < MAX_DEPTH:
            return _composite(value, (*within, id(value)))
    return text_of(value)


def _number(value: float) -> Any:
    # int() and float(): a subclass may have its own text.
    if isinstance(value, int):
        return int(value) if value.bit_length() < _MAX_BITS else hex(value)
    return float(value) if math.isfinite(value) else repr(float(value))


def _composite(value: object, within: tuple[int, ...]) -> Any:
    if isinstance(value, Mapping):
        return {text_of(key): json_value(each, within) for key, each in value.items()}
    if isinstance(value, (Sequence, AbstractSet)) and not isinstance(value, (bytes, bytearray)):
        return [json_value(each, within) for each in value]
    return text_of(value)


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
