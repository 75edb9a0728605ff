"""Checks of single values, each with an error that names the field, the value and the rule."""

import json
import unicodedata
from datetime import UTC, datetime
from typing import Any

from celery_dynbeat.db.models import NAME_LENGTH
from celery_dynbeat.errors import InvalidScheduleError

#: Three centuries, in seconds: beyond it dates cannot be reckoned with.
LONGEST = 1e10
#: Of descriptions and reasons, in characters.
PROSE_LENGTH = 1024
#: MariaDB's JSON ends at 32 levels; args and kwargs are one of them.
DEEPEST = 30
#: Instants that every database holds and every zone can shift.
YEARS = range(1900, 9900)
_SHOWN = 80


def refuse(field: str, value: object, rule: str) -> InvalidScheduleError:
    """Return the error for ``value``, shown in part when it is long."""
    try:
        shown = repr(value)
    except (ValueError, RecursionError):
        # A number of more digits than Python prints, or a structure that contains itself.
        shown = f"a {type(value).__name__} that cannot be shown"
    if len(shown) > _SHOWN:
        shown = f"{shown[:_SHOWN]}..."
    return InvalidScheduleError(f"{field} = {shown}: {rule}", field=field)


def name(field: str, value: object, *, empty: bool = False) -> str:
    """Return a name, owner or task as it is stored: 1 to 255 characters that can be seen."""
    if not isinstance(value, str):
        raise refuse(field, value, "must be a text")
    if not value and not empty:
        raise refuse(field, value, "must not be empty")
    if len(value) > NAME_LENGTH:
        raise refuse(field, value, f"is {len(value)} characters long, at most {NAME_LENGTH} fit")
    if value != value.strip():
        raise refuse(field, value, "must not begin or end with white space")
    if any(unicodedata.category(character) in {"Cc", "Cs"} for character in value):
        raise refuse(field, value, "must not contain control characters or lone surrogates")
    return value


def plain_json(field: str, value: Any) -> Any:
    """Return ``value`` as it comes back from JSON; NaN and deep nesting are refused."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
        copy = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise refuse(field, value, f"must be plain JSON ({error})") from error
    if _depth(copy) > DEEPEST:
        raise refuse(field, value, f"must not be nested deeper than {DEEPEST} levels")
    return copy


def _depth(value: Any) -> int:
    level, depth = [value], 0
    while level and depth <= DEEPEST:
        inner = [each for each in level if isinstance(each, (list, dict))]
        level = [
            child for each in inner for child in (each.values() if isinstance(each, dict) else each)
        ]
        depth += bool(inner)
    return depth


def instant(field: str, value: Any) -> datetime | None:
    """Return an aware instant in UTC, or None."""
    if value is None:
        return None
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise refuse(field, value, "must be an aware datetime, such as datetime.now(UTC)")
    if value.year not in YEARS:
        raise refuse(field, value, f"must lie in the years {YEARS.start} to {YEARS.stop - 1}")
    return value.astimezone(UTC)


def number(field: str, value: Any, *, least: float, most: float, whole: bool = False) -> Any:
    """Return a number from ``least`` to ``most``; True and False are none."""
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
        kind = "whole number" if whole else "number"
        raise refuse(field, value, f"must be a {kind} from {least:g} to {most:g}")
    return value


def prose(field: str, value: Any) -> str:
    """Return a text of at most PROSE_LENGTH characters that every database takes."""
    if not isinstance(value, str) or len(value) > PROSE_LENGTH:
        raise refuse(field, value, f"must be a text of at most {PROSE_LENGTH} characters")
    if "\x00" in value:
        raise refuse(field, value, "must not contain a NUL character")
    plain_json(field, value)
    return value


def choice(field: str, value: Any, *choices: Any) -> Any:
    """Return ``value`` when it is one of ``choices``."""
    if value not in choices:
        raise refuse(field, value, f"must be one of {', '.join(map(repr, choices))}")
    return value
