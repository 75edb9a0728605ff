"""The calls that read the audit."""

from typing import Any, Unpack

from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.checks import (
    check_choice,
    check_instant,
    check_integer,
    check_limit,
    check_name,
)
from celery_dynbeat.api.filters import ChangeFilter
from celery_dynbeat.api.results import ChangeInfo, Page, cursors
from celery_dynbeat.api.results.page import PAGE_SIZE, page_of
from celery_dynbeat.common.states import Action
from celery_dynbeat.store.schedules import change_pages

NEWEST = "newest_change"


class ChangeCalls(Calls):
    """The calls that read the audit."""

    def changes(
        self,
        name: str | None = None,
        *,
        limit: int = PAGE_SIZE,
        after: str | None = None,
        **matching: Unpack[ChangeFilter],
    ) -> Page[ChangeInfo]:
        """Return one page of up to ``limit`` edits that match, newest first.

        - ``name`` selects the edits of the schedules with this name. ``name=""`` returns only edits
          of an owner, or of everything, such as a hold. The edits of a deleted schedule can be read
          under its name until dynbeat_audit_retention has passed.
        - The other filters are described in ``ChangeFilter``: owner, actor, action, since, until.
          If you filter by a rare ``action``, or by a ``name`` for all owners, also pass ``since``,
          because the call reads the changes since that instant until ``limit`` of them match.
        - ``after`` is the ``cursor`` of the previous page. ``limit`` is at most 1,000.

        Raises InvalidScheduleError.

        >>> _ = mine.bound(actor="alice", reason="too many at nine").update("digest", window=5)
        >>> [(change.action, change.actor) for change in mine.changes("digest")]
        [('update', 'alice'), ('create', '')]
        """
        check_limit("limit", limit)
        found = _filter_of(name, **self._in_scope(ChangeFilter, matching))
        key = None if after is None else cursors.decode(after, order=NEWEST, parts=_KEY)
        rows = self._read_many(
            lambda session: change_pages.page(session, matching=found, after=key, limit=limit + 1),
        )
        return page_of(rows, limit=limit, order=NEWEST, info=ChangeInfo.of, key=_key)


def _filter_of(name: str | None, **given: Any) -> change_pages.ChangeFilter:
    for field, value in {"name": name, "actor": given["actor"]}.items():
        if value is not None:
            check_name(field, value, empty=True)
    if given["action"] is not None:
        check_choice("action", given["action"], *map(str, Action))
    for field in ("since", "until"):
        given[field] = check_instant(field, given[field])
    return change_pages.ChangeFilter(name=name, **given)


def _key(change: ChangeInfo) -> tuple[Any, ...]:
    return change.changed_at, change.id


def _as_id(part: Any) -> int:
    return check_integer("after", part, minimum=0, maximum=2**63 - 1)


_KEY = (cursors.as_instant, _as_id)
