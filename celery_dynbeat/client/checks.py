"""Checks of single values, each with an error that names the field, the value and the rule."""

import json
import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.text import shorten
from celery_dynbeat.db.models import NAME_LENGTH
from celery_dynbeat.triggers.limits import FIRST_YEAR, LAST_YEAR

T = TypeVar("T")

#: Three centuries, in seconds: beyond it dates cannot be reckoned with.
MAX_SECONDS = 1e10
#: Of descriptions and reasons, in characters.
TEXT_LENGTH = 1024
#: MariaDB's JSON ends at 32 levels; args and kwargs are one of them.
MAX_DEPTH = 30
#: Instants that every database holds and every zone can shift.
YEARS = range(FIRST_YEAR, LAST_YEAR + 1)
#: What is so many times larger than is allowed need not be counted to the byte.
_SIZE_FACTOR = 8
#: Control characters and lone surrogates.
_FORBIDDEN_CATEGORIES = frozenset({"Cc", "Cs"})
#: The characters of another's error that one of ours repeats.
_REASON_LENGTH = 200


def invalid(field: str, value: object, rule: str) -> InvalidScheduleError:
    """Return the error for ``value``; it and the field are shown in part when they are long."""
    if len(field) > NAME_LENGTH:
        field = shorten(field)
    return InvalidScheduleError(f"{field} = {shorten(value)}: {rule}", field=field)


def check_name(field: str, value: object, *, empty: bool = False) -> str:
    """Return a name, owner or task as it is stored: 1 to 255 characters that can be seen."""
    if not isinstance(value, str):
        example = ", such as 'user:42'" if field == "owner" else ""
        raise invalid(field, value, f"must be a text{example}")
    if not value and not empty:
        raise invalid(field, value, "must not be empty")
    if len(value) > NAME_LENGTH:
        raise invalid(field, value, f"is {len(value)} characters long, at most {NAME_LENGTH} fit")
    if value != value.strip():
        raise invalid(field, value, "must not begin or end with white space")
    if not value.isprintable() and not _FORBIDDEN_CATEGORIES.isdisjoint(
        map(unicodedata.category, value)
    ):
        raise invalid(field, value, "must not contain control characters or lone surrogates")
    return value


def copy_as(kind: Callable[[Any], T], field: str, value: Any) -> T:
    """Return ``kind(value)``: a list or dict of what a caller's own class holds."""
    try:
        return kind(value)
    # Whatever the methods of that class raise.
    except Exception as error:
        raise invalid(field, value, f"cannot be read ({type(error).__name__})") from error


def check_json(field: str, value: Any, *, limit: int | None = None) -> Any:
    """Return ``value`` as it comes back from JSON; NaN and deep nesting are refused.

    What is far larger than ``limit`` bytes is refused too, before it is written out.
    """
    try:
        count = _count_values(field, value, limit)
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
        copy = json.loads(text)
    except InvalidScheduleError:
        raise
    # Also what the methods of a caller's own class raise.
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error)[:_REASON_LENGTH]}"
        raise invalid(field, value, f"must be plain JSON ({reason})") from error
    if _count_values(field, copy, limit) != count:
        raise invalid(field, value, "has keys that are the same in JSON, where each is a text")
    return copy


def _count_values(field: str, value: Any, limit: int | None) -> int:
    """Return how many values ``value`` holds.

    Level by level, and no further than is allowed: a structure that holds a part of itself again
    and again is short to build, and endless to write out.
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
            raise invalid(field, value, f"must not be nested deeper than {MAX_DEPTH} levels")
        level = [
            child for each in inner for child in (each.values() if isinstance(each, dict) else each)
        ]
    return count


def _min_bytes(value: Any) -> int:
    """Return how many bytes of JSON ``value`` takes at least, each that it holds taken for one."""
    if isinstance(value, int):
        return value.bit_length() // 4
    if isinstance(value, dict):
        return len(value) + sum(len(key) for key in value if isinstance(key, str))
    return len(value) if isinstance(value, (str, list, tuple)) else 0


def payload_too_large(field: str, value: Any, size: object, limit: int) -> InvalidScheduleError:
    """Return the error for a payload of more than ``limit`` bytes."""
    rule = (
        f"args, kwargs and options are {size} bytes as JSON, dynbeat_max_payload_bytes allows"
        f" {limit}: store large data elsewhere and pass its key"
    )
    return invalid(field, value, rule)


def check_instant(field: str, value: Any) -> datetime | None:
    """Return an aware instant in UTC, or None."""
    if value is None:
        return None
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise invalid(field, value, "must be an aware datetime, such as datetime.now(UTC)")
    if value.year not in YEARS:
        raise invalid(field, value, f"must lie in the years {YEARS.start} to {YEARS.stop - 1}")
    return value.astimezone(UTC)


def check_integer(field: str, value: Any, *, least: int, most: int) -> int:
    """Return ``value`` if it is an integer from ``least`` to ``most``; a bool is not one."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise invalid(field, value, f"must be a whole number from {least} to {most}")
    return value


def check_number(field: str, value: Any, *, least: float, most: float) -> float:
    """Return ``value`` if it is a number from ``least`` to ``most``; a bool is not one."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not least <= value <= most:
        raise invalid(field, value, f"must be a number from {_shown(least)} to {_shown(most)}")
    return float(value)


def _shown(number: float) -> str:
    return f"{number:.0f}" if number == int(number) else f"{number:g}"


def check_version(field: str, value: Any) -> int:
    """Return the version of a schedule that a caller expects."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise invalid(field, value, "must be the number that was read as .version of the schedule")
    return value


def check_text(field: str, value: Any) -> str:
    """Return a text of at most TEXT_LENGTH characters that every database takes."""
    if not isinstance(value, str) or len(value) > TEXT_LENGTH:
        raise invalid(field, value, f"must be a text of at most {TEXT_LENGTH} characters")
    if "\x00" in value:
        raise invalid(field, value, "must not contain a NUL character")
    check_json(field, value)
    return value


def check_choice(field: str, value: Any, *choices: Any) -> Any:
    """Return ``value`` when it is one of ``choices``."""
    if value not in choices:
        raise invalid(field, value, f"must be one of {', '.join(map(repr, choices))}")
    return value
