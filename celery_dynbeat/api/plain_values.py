"""Copies of small plain values, without a round trip through JSON.

Most payloads are a few short texts and numbers. For these the round trip returns the same value,
and takes most of the time of a check. This module recognizes them. All other values need the round
trip, such as values of a subclass, non-ASCII text, and large numbers.
"""

from math import isfinite
from typing import Any

#: The number of nested lists and dicts, and of values in each. A copy therefore has at most 1,000
#: values.
_LEVELS = 2
_MAX_VALUES = 32
_MAX_LENGTH = 1_000
_MAX_INTEGER = 2**63


def copy_plain(value: Any) -> tuple[Any] | None:
    """Return a copy of ``value`` in a tuple, or None if the value needs the round trip."""
    copy = _copy(value, _LEVELS)
    return None if copy is _OTHER else (copy,)


#: The result for a value that is not plain.
_OTHER = object()


def _copy(value: Any, levels: int) -> Any:
    # isinstance would be wrong, because a subclass can behave differently.
    kind = type(value)
    if kind is str:
        return value if len(value) <= _MAX_LENGTH and value.isascii() else _OTHER
    if kind is bool or value is None:
        return value
    if kind is int:
        return value if -_MAX_INTEGER <= value < _MAX_INTEGER else _OTHER
    if kind is float:
        return value if isfinite(value) else _OTHER
    if not levels or (kind is not dict and kind is not list) or len(value) > _MAX_VALUES:
        return _OTHER
    return _copy_list(value, levels) if kind is list else _copy_dict(value, levels)


def _copy_list(values: list[Any], levels: int) -> Any:
    copy = [_copy(each, levels - 1) for each in values]
    return _OTHER if _OTHER in copy else copy


def _copy_dict(values: dict[Any, Any], levels: int) -> Any:
    copy = {}
    for key, each in values.items():
        if type(key) is not str or len(key) > _MAX_LENGTH or not key.isascii():
            return _OTHER
        copy[key] = plain = _copy(each, levels - 1)
        if plain is _OTHER:
            return _OTHER
    return copy
