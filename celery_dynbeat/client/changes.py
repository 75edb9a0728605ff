"""The calls that read the audit."""

from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.client.checks import (
    check_choice,
    check_instant,
    check_integer,
    check_name,
)
from celery_dynbeat.client.queries import check_limit
from celery_dynbeat.client.views import ChangeInfo, ChangePage, cursors
from celery_dynbeat.common.actions import Action
from celery_dynbeat.runtime.context import Context
from celery_dynbeat.store import changes
from celery_dynbeat.store.changes import ChangeFilter

NEWEST = "newest_change"


class ChangeCalls:
    """The calls of OwnerSchedules for the audit."""

    _context: Context
    owner: str

    def changes(
        self,
        name: str | None = None,
        *,
        actor: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
        limit: int = 20,
        after: str | None = None,
        session: Session | None = None,
    ) -> ChangePage:
        """Return one page of up to ``limit`` edits, newest first.

        Without ``name``, the edits of all schedules of the owner and of the owner are returned.
        ``name=""`` returns only those of the owner, such as a hold. The edits of a deleted schedule
        stay readable under its name until dynbeat_audit_retention ends.

        The other filters are the exact actor, an action such as ``"pause"``, and ``since``, an
        aware datetime. ``after`` is the ``cursor`` of the previous page. ``limit`` is at most
        1,000. Raises InvalidScheduleError.
        """
        if name is not None:
            check_name("name", name, empty=True)
        matching = ChangeFilter(
            owner=self.owner, name=name, actor=actor, action=action, since=since
        )
        return page(self._context, session, matching=matching, limit=limit, after=after)


def page(
    context: Context,
    session: Session | None,
    *,
    matching: ChangeFilter,
    limit: int,
    after: str | None,
) -> ChangePage:
    """Return one page. Its cursor is None if it is the last page."""
    check_limit("limit", limit)
    check_instant("since", matching.since)
    for field in ("owner", "actor"):
        value = getattr(matching, field)
        if value is not None:
            check_name(field, value, empty=True)
    if matching.action is not None:
        check_choice("action", matching.action, *map(str, Action))
    key = None if after is None else cursors.decode(after, order=NEWEST, parts=_KEY)
    rows = context.read_many(
        session,
        lambda session: changes.page(session, matching=matching, after=key, limit=limit + 1),
    )
    items = tuple(ChangeInfo.of(row) for row in rows[:limit])
    return ChangePage(items, cursor_of(items[-1]) if len(rows) > limit else None)


def cursor_of(change: ChangeInfo) -> str:
    """Return the cursor of a page that ends with ``change``."""
    return cursors.encode(NEWEST, (change.changed_at, change.id))


def _as_id(part: Any) -> int:
    return check_integer("after", part, minimum=0, maximum=2**63 - 1)


_KEY = (cursors.as_instant, _as_id)
