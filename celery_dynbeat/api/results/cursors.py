"""The text of a cursor: the order of its list, and the key of the last item of a page.

It is not signed. A caller can write any key into it, so the key only says where a page starts; the
filters of the call decide which rows the page contains.
"""

import base64
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from celery_dynbeat.api import checks
from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.text import shorten

#: Characters. Two names of 255 characters outside the BMP, as JSON in base64, are shorter.
_MAX_CURSOR_LENGTH = 10_000


def encode(order: str, key: Sequence[Any]) -> str:
    """Return the cursor of a page in ``order`` that ends with ``key``: texts and instants."""
    parts = [each.isoformat() if isinstance(each, datetime) else each for each in key]
    return base64.urlsafe_b64encode(json.dumps([order, *parts]).encode()).decode()


def decode(cursor: object, *, order: str, parts: Sequence[Callable[[Any], Any]]) -> tuple[Any, ...]:
    """Return the key in a cursor of ``order``; ``parts`` read and check the parts of the key.

    Raises InvalidScheduleError for another text, and for the cursor of another order.
    """
    try:
        found, *key = _load(cursor)
        if found == order and len(key) == len(parts):
            return tuple(read(part) for read, part in zip(parts, key, strict=True))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        rule = "not a cursor; pass the cursor of the previous page"
        raise checks.invalid("after", cursor, rule) from error
    msg = (
        f"after = {shorten(cursor)}: the cursor of another list, or of another order than"
        f" {str(order)!r}; pass the cursor of the previous page of the same list"
    )
    raise InvalidScheduleError(msg, field="after")


def decode_id(cursor: object, *, order: str) -> int:
    """Return the id in the cursor of a list that is ordered by id; 0 without a cursor."""
    return 0 if cursor is None else int(decode(cursor, order=order, parts=(as_row_id,))[0])


def order_of(cursor: object) -> object:
    """Return the order in a cursor, None if it cannot be read."""
    try:
        return next(iter(_load(cursor)), None)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _load(cursor: Any) -> list[Any]:
    if len(cursor) > _MAX_CURSOR_LENGTH:
        raise ValueError
    key = json.loads(base64.urlsafe_b64decode(cursor.encode()))
    if not isinstance(key, list):
        raise TypeError
    return key


def as_text(part: Any) -> str:
    """Return a text of a key. Raises ValueError for one that a driver cannot send."""
    # No driver can send a lone surrogate; PostgreSQL's cannot send a NUL either.
    part.encode()
    if "\x00" in part:
        raise ValueError
    return str(part)


def as_instant(part: Any) -> datetime:
    """Return an instant of a key, in UTC."""
    return checks.check_required_instant("after", datetime.fromisoformat(part))


def as_run_id(part: Any) -> str:
    """Return the id of a run in a key."""
    return checks.check_run_id("after", part)


def as_row_id(part: Any) -> int:
    """Return the id of a row in a key."""
    return checks.check_integer("after", part, minimum=1, maximum=2**63 - 1)


def as_schedule_id(part: Any) -> int:
    """Return the id of the schedule of a run in a key. 0 means that the schedule was deleted."""
    return checks.check_integer("after", part, minimum=0, maximum=2**63 - 1)
