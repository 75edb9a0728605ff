"""Checks of single values. Each error names the field, the value and the rule."""

import difflib
import json
import unicodedata
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from math import isfinite
from typing import Any, TypeVar
from uuid import UUID

from celery_dynbeat.common.errors import ConflictError, InvalidArgumentError
from celery_dynbeat.common.text import (
    FIRST_YEAR,
    LAST_YEAR,
    MAX_PAGE_SIZE,
    NAME_LENGTH,
    as_text,
    shorten,
)
from celery_dynbeat.triggers.base import Trigger

#: The number of nested lists and dicts, and of values in each. A copy therefore has at most 1,000
#: values.
_LEVELS = 2
_MAX_VALUES = 32
_MAX_LENGTH = 1_000
_MAX_INTEGER = 2**63


def copy_plain(value: Any) -> tuple[Any] | None:
    """Return a copy of ``value`` in a tuple, or None if it needs a round trip through JSON.

    Most payloads are a few short texts and numbers. For these the round trip returns the same
    value, and takes most of the time of a check. All other values need it, such as values of a
    subclass, non-ASCII text, and large numbers.
    """
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


T = TypeVar("T")

#: About three centuries. A longer duration added to an instant leaves the range of datetime.
MAX_SECONDS = 1e10
#: Characters of a description or a reason.
TEXT_LENGTH = 1024
#: MariaDB's JSON has at most 32 levels; args and kwargs are one of them.
MAX_DEPTH = 30
#: A value this many times larger than its limit is rejected before it is serialized.
_SIZE_FACTOR = 8
#: Control characters and lone surrogates.
_FORBIDDEN = frozenset({"Cc", "Cs"})
#: Characters of another library's error message that an error quotes.
_REASON_LENGTH = 200
#: What a call says that is given the arguments of its scope.
BINDING = {
    each: f"bind the calls to it: for_owner(owner, {each}=...), or bound({each}=...)"
    for each in ("session", "actor", "reason")
}


def invalid(
    field: str, value: object, rule: str, code: str = "invalid", **params: Any
) -> InvalidArgumentError:
    """Return the error for ``value``. A long value or field name is shortened.

    ``code`` and ``params`` are those of the sentence for end users, in ``common.errors``.

    A trigger is shown as its description: end users read these messages.
    """
    field, message = _shown(field, value, rule)
    return InvalidArgumentError(message, field=field, code=code, **params)


def conflict(field: str, value: object, rule: str, *, code: str) -> ConflictError:
    """Return the error for ``value``, which does not fit the present state."""
    field, message = _shown(field, value, rule)
    return ConflictError(message, field=field, code=code)


def _shown(field: str, value: object, rule: str) -> tuple[str, str]:
    if len(field) > NAME_LENGTH:
        field = shorten(field)
    shown = value.describe() if isinstance(value, Trigger) else value
    return field, f"{field} = {shorten(shown)}: {rule}"


def check_name(field: str, value: object, *, empty: bool = False) -> str:
    """Return ``value`` if it is a valid name, owner or task: 1 to 255 printable characters.

    If ``empty`` is true, the empty string is also valid.
    """
    if not isinstance(value, str):
        example = ", such as 'user:42'" if field in {"owner", "to"} else ""
        raise invalid(field, value, f"must be a string{example}", "type")
    if not value and not empty:
        raise invalid(field, value, "must not be empty", "required")
    if len(value) > NAME_LENGTH:
        rule = f"must have at most {NAME_LENGTH} characters, not {len(value)}"
        raise invalid(field, value, rule, "too_long", maximum=NAME_LENGTH)
    if value != value.strip():
        raise invalid(field, value, "must not begin or end with white space", "characters")
    return _check_printable(field, value)


def check_prefix(field: str, value: Any) -> str:
    """Return ``value`` if it is a text with which a name can begin; ``""`` is valid."""
    if not isinstance(value, str) or len(value) > NAME_LENGTH:
        rule = f"must be a string of at most {NAME_LENGTH} characters"
        raise invalid(field, value, rule, "too_long", maximum=NAME_LENGTH)
    return _check_printable(field, value)


def _check_printable(field: str, value: str) -> str:
    if not value.isprintable() and not _FORBIDDEN.isdisjoint(map(unicodedata.category, value)):
        rule = "must not contain control characters or lone surrogates"
        raise invalid(field, value, rule, "characters")
    return value


def check_owner(value: object, *, field: str = "owner") -> str:
    """Return ``value`` if it is a valid owner; ``""`` is the application itself."""
    return check_name(field, value, empty=True)


def copy_as(kind: Callable[[Any], T], field: str, value: Any) -> T:
    """Return ``kind(value)``, which is a list or a dict with the content of the caller's object."""
    try:
        return kind(value)
    # The caller's class can raise any error.
    except Exception as error:
        raise invalid(field, value, f"cannot be read ({type(error).__name__})") from error


def check_json(field: str, value: Any, *, limit: int | None = None) -> Any:
    """Return ``value`` after a round trip through JSON. NaN and deep nesting are rejected.

    A value that is much larger than ``limit`` bytes is rejected before it is serialized.
    """
    plain = copy_plain(value)
    if plain is not None:
        return plain[0]
    try:
        count = _count_values(field, value, limit)
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
        copy = json.loads(text)
    except InvalidArgumentError:
        raise
    # The caller's class can raise any error.
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error)[:_REASON_LENGTH]}"
        rule = f"must be plain JSON ({reason}): convert other values, such as dates, to text"
        raise invalid(field, value, rule, "json") from error
    if _count_values(field, copy, limit) != count:
        rule = "has keys that become equal in JSON, where keys are strings"
        raise invalid(field, value, rule, "json")
    return copy


def _count_values(field: str, value: Any, limit: int | None) -> int:
    """Return the number of values in ``value``, at all levels.

    Stop as soon as a limit is exceeded, because a small structure that contains the same part many
    times serializes to a huge text.
    """
    level, depth, count, size = [value], 0, 0, 0
    while level:
        count += len(level)
        size += sum(map(_min_bytes, level))
        if limit is not None and size > _SIZE_FACTOR * limit:
            raise payload_too_large(field, value, f"more than {limit}", limit)
        inner = [each for each in level if isinstance(each, (list, tuple, dict))]
        depth += bool(inner)
        if depth > MAX_DEPTH:
            rule = f"must not be nested deeper than {MAX_DEPTH} levels"
            raise invalid(field, value, rule, "json")
        level = [
            child for each in inner for child in (each.values() if isinstance(each, dict) else each)
        ]
    return count


def _min_bytes(value: Any) -> int:
    """Return a lower bound of the JSON size of ``value``; each value inside counts as one byte."""
    if isinstance(value, int):
        return value.bit_length() // 4
    if isinstance(value, dict):
        return len(value) + sum(len(key) for key in value if isinstance(key, str))
    return len(value) if isinstance(value, (str, list, tuple)) else 0


def payload_too_large(field: str, value: Any, size: object, limit: int) -> InvalidArgumentError:
    """Return the error for a payload of more than ``limit`` bytes."""
    rule = (
        f"args, kwargs and options are {size} bytes as JSON, but dynbeat_max_payload_bytes"
        f" allows {limit}: store large data elsewhere and pass its key"
    )
    return invalid(field, value, rule, "too_large", maximum=limit)


def check_instant(field: str, value: Any) -> datetime | None:
    """Return ``value`` in UTC if it is an aware datetime, or None if it is None."""
    return None if value is None else check_required_instant(field, value)


def check_required_instant(field: str, value: Any) -> datetime:
    """Return ``value`` in UTC if it is an aware datetime that each database can store."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        rule = "must be an aware datetime, such as datetime.now(UTC)"
        raise invalid(field, value, rule, "instant")
    if not FIRST_YEAR <= value.year <= LAST_YEAR:
        rule = f"must lie in the years {FIRST_YEAR} to {LAST_YEAR}"
        raise invalid(field, value, rule, "instant")
    return value.astimezone(UTC)


def check_integer(field: str, value: Any, *, minimum: int, maximum: int) -> int:
    """Return ``value`` if it is an integer within the bounds; a bool is not an integer."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        rule = f"must be a whole number from {minimum} to {maximum}"
        raise invalid(field, value, rule, "range", minimum=minimum, maximum=maximum)
    return value


def check_flag(field: str, value: object) -> bool:
    """Return ``value`` if it is True or False."""
    if not isinstance(value, bool):
        raise invalid(field, value, "must be True or False", "type")
    return value


def check_limit(field: str, value: object) -> None:
    """Raise InvalidArgumentError unless ``value`` is a number of rows from 1 to MAX_PAGE_SIZE."""
    check_integer(field, value, minimum=1, maximum=MAX_PAGE_SIZE)


def check_number(field: str, value: Any, *, minimum: float, maximum: float) -> float:
    """Return ``value`` if it is a number within the bounds; a bool is not a number."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not minimum <= value <= maximum:
        first, last = _format_bound(minimum), _format_bound(maximum)
        rule = f"must be a number from {first} to {last}"
        raise invalid(field, value, rule, "range", minimum=first, maximum=last)
    return float(value)


def _format_bound(number: float) -> str:
    return f"{number:.0f}" if number == int(number) else f"{number:g}"


def check_run_id(field: str, value: Any) -> str:
    """Return ``value`` as the id of a run: the text of a UUID, in lower case with hyphens."""
    try:
        return str(UUID(value))
    except (ValueError, TypeError, AttributeError) as error:
        rule = "must be the id of a run, such as .id of a RunInfo"
        raise invalid(field, value, rule, "type") from error


def check_version(field: str, value: Any) -> int:
    """Return ``value`` if it can be the version of a schedule."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        rule = "must be a number that you read as .version of the schedule"
        raise invalid(field, value, rule, "type")
    return value


def check_text(field: str, value: Any) -> str:
    """Return ``value`` if it is a string that each database can store."""
    value = as_text(value)
    if not isinstance(value, str) or len(value) > TEXT_LENGTH:
        rule = f"must be a string of at most {TEXT_LENGTH} characters"
        raise invalid(field, value, rule, "too_long", maximum=TEXT_LENGTH)
    if "\x00" in value:
        raise invalid(field, value, "must not contain a NUL character", "characters")
    check_json(field, value)
    return value


def check_choice(field: str, value: Any, *choices: Any) -> Any:
    """Return ``value`` if it is one of ``choices``."""
    if value not in choices:
        rule = f"must be one of {', '.join(map(repr, choices))}"
        raise invalid(field, value, rule, "choice", choices=choices)
    return value


def check_one_of(field: str, value: Any, *choices: str) -> str:
    """Return ``value`` if it is one of ``choices``; the error names a similar choice."""
    if not isinstance(value, str) or value not in choices:
        rule = f"must be one of {', '.join(choices)}{_suggestion(value, choices)}"
        raise invalid(field, value, rule, "choice", choices=choices)
    return str(value)


def check_choices(field: str, value: Any, *choices: str) -> tuple[str, ...]:
    """Return the choices in ``value``, which is one or several of ``choices``, or None for ()."""
    if value is None:
        return ()
    many = (value,) if isinstance(value, str) else copy_as(tuple, field, value)
    if not many:
        raise invalid(field, value, "must not be empty; None means any", "required")
    # A tuple: with a set, a value that is not hashable would raise TypeError.
    for each in many:
        if not isinstance(each, str) or each not in choices:
            rule = f"must be one or several of {', '.join(choices)}{_suggestion(each, choices)}"
            raise invalid(field, each, rule, "choice", choices=choices)
    return tuple(str(choice) for choice in choices if choice in many)


def _suggestion(value: object, choices: Iterable[str]) -> str:
    text = value[:NAME_LENGTH] if isinstance(value, str) else ""
    near = difflib.get_close_matches(text, list(choices), n=1)
    return f"; did you mean {str(near[0])!r}?" if near else ""
