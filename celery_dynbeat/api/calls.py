"""The common parts of all calls of the API: their scope, filters, audit, and pages of lists.

A cursor has the order of its list, and the key of the last item of a page. It is not signed: a
caller can write any key into it, so the key only says where a page starts. The filters of the call
decide which rows the page contains.
"""

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from datetime import datetime
from functools import partial
from typing import Any, Self, TypeVar

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.audit import acting_as
from celery_dynbeat.api.results import Page
from celery_dynbeat.common.errors import InvalidArgumentError
from celery_dynbeat.common.filters import Order
from celery_dynbeat.common.infos import Info
from celery_dynbeat.common.text import shorten, suggestion
from celery_dynbeat.process.context import Context

T = TypeVar("T")
X = TypeVar("X", bound=Info)
#: Items of a page of any list.
PAGE_SIZE = 100
#: Called with the number of rows that are done so far.
Progress = Callable[[int], object]


class Calls:
    """Calls on the rows of one owner, or of all owners. Each is defined once.

    They can be bound to a session, an actor and a reason.
    """

    def __init__(self, context: Context, owner: str | None) -> None:
        self._context = context
        #: None means all owners.
        self._owner = owner
        self._session: Session | None = None
        self._actor: str | None = None
        self._reason: str | None = None

    def bound(
        self,
        *,
        session: Session | None = None,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Self:
        """Return the same calls in a transaction, and in the name of an actor.

        - Calls with a ``session`` join its transaction and do not commit. A rollback by the caller
          undoes them. Beat is notified when the caller commits.
        - ``actor`` and ``reason`` are recorded in the audit of each change. ``actor`` has at most
          255 characters, such as the name of a user. ``reason`` has at most 1,024.

        An argument that is None keeps what these calls are bound to. Without an actor or a reason,
        the calls take those of ``Dynbeat.acting``. Raises InvalidArgumentError for an invalid actor
        or reason.
        """
        if actor is not None:
            checks.check_name("actor", actor, empty=True)
        if reason is not None:
            checks.check_text("reason", reason)
        calls = copy(self)
        given = {"_session": session, "_actor": actor, "_reason": reason}
        vars(calls).update({name: value for name, value in given.items() if value is not None})
        return calls

    def _acting(self, reason: str | None = None) -> AbstractContextManager[None]:
        """Do the edits of a block in the name of the actor. ``reason`` replaces the bound one."""
        return acting_as(actor=self._actor, reason=self._reason if reason is None else reason)

    def _write(self, work: Callable[[Session], T], *, reason: str | None = None) -> T:
        """Do ``work`` in the bound transaction or in a new one, in the name of the actor."""
        with self._acting(reason):
            return self._context.write(self._session, work)

    def _read(self, work: Callable[[Session], T]) -> T:
        return self._context.read(self._session, work)

    def _read_many(self, work: Callable[[Session], T]) -> T:
        return self._context.read_many(self._session, work)

    def _now(self) -> datetime:
        return self._context.now(self._session)

    def _page(
        self,
        read: Callable[..., Sequence[Any]],
        order: str,
        items: Callable[[Session, Sequence[Any]], Iterable[X]],
        *,
        limit: int,
        after: str | None,
        first: Any = None,
    ) -> Page[X]:
        """Return one page of a list in one of the orders below.

        ``read`` returns up to ``limit`` rows whose key follows ``after``, which is ``first`` for
        the first page. ``items`` makes the items of the page from its rows.
        """
        checks.check_limit("limit", limit)
        key = first if after is None else _decode_key(after, order=order)

        def work(session: Session) -> Page[X]:
            rows = read(session, after=key, limit=limit + 1)
            is_last = len(rows) <= limit
            cursor = None if is_last else _encode_row(rows[limit - 1], order=order)
            return Page(tuple(items(session, rows[:limit])), cursor)

        return self._read_many(work)

    def _in_scope(self, kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the filter with each key of the TypedDict ``kind``, within the scope.

        Raises InvalidArgumentError for another key, and for an owner outside the scope.
        """
        names = kind.__annotations__
        for name in given.keys() - names.keys():
            rule = f"there is no such filter; {checks.BINDING.get(name) or suggestion(name, names)}"
            raise checks.invalid(name, given[name], rule)
        matching = {**dict.fromkeys(names), **given}
        owner = matching["owner"]
        if owner is not None:
            checks.check_owner(owner)
        if self._owner is not None and owner not in {None, self._owner}:
            whose = f"owner {self._owner!r}"
            rule = f"is outside the scope of these calls, {whose}: call for_owner() with it"
            raise checks.invalid("owner", owner, rule)
        return {**matching, "owner": self._owner if owner is None else owner}


#: Characters. Two names of 255 characters outside the BMP, as JSON in base64, are shorter.
_MAX_CURSOR_LENGTH = 10_000


def encode_cursor(order: str, key: Sequence[Any]) -> str:
    """Return the cursor of a page in ``order`` that ends with ``key``: texts and instants."""
    parts = [each.isoformat() if isinstance(each, datetime) else each for each in key]
    return base64.urlsafe_b64encode(json.dumps([order, *parts]).encode()).decode()


def _encode_row(row: Any, *, order: str) -> str:
    """Return the cursor of a page in ``order`` that ends with ``row``."""
    return encode_cursor(order, [getattr(row, name) for name in _PARTS[order]])


def _decode_key(cursor: object, *, order: str) -> Any:
    """Return the key in a cursor of ``order``: a tuple, or the value of its only column."""
    key = decode_cursor(cursor, order=order)
    return key[0] if len(key) == 1 else key


def decode_cursor(cursor: object, *, order: str) -> tuple[Any, ...]:
    """Return the key in a cursor of ``order``.

    Raises InvalidArgumentError for another text, and for the cursor of another order.
    """
    parts = _PARTS[order]
    try:
        found, *key = _load(cursor)
        if found == order and len(key) == len(parts):
            return tuple(read(part) for read, part in zip(parts.values(), key, strict=True))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        rule = "not a cursor; pass the cursor of the previous page"
        raise checks.invalid("after", cursor, rule) from error
    msg = (
        f"after = {shorten(cursor)}: the cursor of another list, or of another order than"
        f" {str(order)!r}; pass the cursor of the previous page of the same list"
    )
    raise InvalidArgumentError(msg, field="after")


def order_of_cursor(cursor: object) -> object:
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


def _text(part: Any) -> str:
    """Return a text of a key. Raises ValueError for one that a driver cannot send."""
    # No driver can send a lone surrogate; PostgreSQL's cannot send a NUL either.
    part.encode()
    if "\x00" in part:
        raise ValueError
    return str(part)


def _instant(part: Any) -> datetime:
    """Return an instant of a key, in UTC."""
    return checks.check_required_instant("after", datetime.fromisoformat(part))


_run_id = partial(checks.check_run_id, "after")
_row_id = partial(checks.check_integer, "after", minimum=1, maximum=2**63 - 1)
#: 0 means that the schedule of the run was deleted.
_schedule_id = partial(checks.check_integer, "after", minimum=0, maximum=2**63 - 1)
#: The columns of a key, and how each is read, for each order of a list.
NEWEST_CHANGE, OLDEST_ALERT, OLDEST_HOLD = "newest_change", "oldest_alert", "oldest_hold"
CALENDAR_NAME = "calendar_name"
_PARTS: Mapping[str, Mapping[str, Callable[[Any], Any]]] = {
    Order.OWNER: {"owner": _text, "name": _text},
    Order.NAME: {"name": _text, "owner": _text},
    CALENDAR_NAME: {"name": _text},
    Order.NEXT_RUN_AT: {"next_run_at": _instant, "id": _row_id},
    Order.FIRE_TIME: {"fire_at": _instant, "id": _run_id},
    NEWEST_CHANGE: {"changed_at": _instant, "id": _row_id},
    Order.RUN_ID: {"id": _run_id},
    Order.SCHEDULE: {"schedule_id": _schedule_id, "id": _run_id},
    OLDEST_ALERT: {"id": _row_id},
    OLDEST_HOLD: {"id": _row_id},
}
