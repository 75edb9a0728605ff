"""Requests: list, show and cancel them."""

from datetime import datetime
from typing import Unpack

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.checks import check_limit
from celery_dynbeat.api.control.cancelling import release_buffered
from celery_dynbeat.api.edit import audit
from celery_dynbeat.api.filters import RequestFilter
from celery_dynbeat.api.results import Page, RequestInfo, cursors
from celery_dynbeat.api.results.base import as_json
from celery_dynbeat.api.results.page import PAGE_SIZE, page_of
from celery_dynbeat.common.errors import RequestNotFoundError
from celery_dynbeat.common.states import Action, RequestKind
from celery_dynbeat.db.models import Request
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import places, requests, schedules

#: The order of the pages, as their cursors name it, and how the parts of their keys are read.
_NEWEST = "newest_request"
_KEY = (cursors.as_row_id,)


class RequestCalls(Calls):
    """The calls for requests. The calls of one owner see the requests of that owner only."""

    def requests(
        self,
        name: str | None = None,
        *,
        limit: int = PAGE_SIZE,
        after: str | None = None,
        session: Session | None = None,
        **matching: Unpack[RequestFilter],
    ) -> Page[RequestInfo]:
        """Return one page of up to ``limit`` requests that match, the newest first.

        - ``name`` selects the requests for the schedules with this name.
        - The filters are described in ``RequestFilter``: owner and kind.
        - ``after`` is the ``cursor`` of the previous page. ``limit`` is at most 1,000.

        The calls across owners also return the requests for all owners. Raises
        InvalidScheduleError.
        """
        given = self._in_scope(RequestFilter, matching)
        if name is not None:
            checks.check_name("name", name)
        if given["kind"] is not None:
            checks.check_choice("kind", given["kind"], *map(str, RequestKind))
        check_limit("limit", limit)
        key = None if after is None else cursors.decode(after, order=_NEWEST, parts=_KEY)
        before = None if key is None else key[0]

        def work(session: Session) -> Page[RequestInfo]:
            rows = requests.page(session, **given, name=name, before=before, limit=limit + 1)
            waiting = places.waiting_by_request(session, {row.id for row in rows})
            return page_of(
                rows,
                limit=limit,
                order=_NEWEST,
                info=lambda row: RequestInfo.of(row, waiting=waiting[row.id]),
                key=lambda row: (row.id,),
            )

        return self._context.read_many(session, work)

    def get_request(self, request_id: int, *, session: Session | None = None) -> RequestInfo:
        """Return a request with its progress. Raises RequestNotFoundError."""
        _check_id(request_id)

        def work(session: Session) -> RequestInfo:
            row = self._find_request(session, request_id)
            waiting = places.waiting_by_request(session, {row.id})
            return RequestInfo.of(row, waiting=waiting[row.id])

        return self._context.read_many(session, work)

    def cancel_request(
        self,
        request_id: int,
        *,
        actor: str | None = None,
        reason: str | None = None,
        session: Session | None = None,
    ) -> RequestInfo:
        """Stop a request and revoke its runs that have not started.

        A request that has already ended keeps its ``finished_at``, and becomes ``"cancelled"`` if
        one of its runs was revoked. ``actor`` and ``reason`` are recorded in the audit;
        ``acting()`` sets their defaults. Raises RequestNotFoundError.
        """
        _check_id(request_id)

        def work(session: Session) -> RequestInfo:
            schedule_id = self._find_request(session, request_id).schedule_id
            if schedule_id is not None:
                # The schedule before its request, in the order of all locks.
                schedules.lock_id(session, schedule_id=schedule_id)
            row = self._find_request(session, request_id, for_update=True)
            now = self._context.clock.now()
            self._cancel(session, row, now=now)
            return recorded(self._context, session, row, Action.CANCEL_REQUEST, now=now)

        return self._write(session, work, actor=actor, reason=reason)

    def _cancel(self, session: Session, row: Request, *, now: datetime) -> None:
        reason = f"the {row.kind} was cancelled"
        revoked = requests.revoke_unstarted_runs(session, row, now=now, reason=reason)
        if row.finished_at is None:
            row.finished_at, row.next_run_at, row.cancelled = now, None, True
        elif revoked:
            row.cancelled = True
        session.flush()
        release_buffered(self._context, session, revoked, now=now)

    def _find_request(
        self, session: Session, request_id: int, *, for_update: bool = False
    ) -> Request:
        owner = self._owner
        row = requests.get(session, request_id=request_id, owner=owner, for_update=for_update)
        if row is None:
            raise RequestNotFoundError(owner=owner, request_id=request_id)
        return row


def recorded(
    context: Context, session: Session, row: Request, action: Action, *, now: datetime
) -> RequestInfo:
    """Write the edit of a request to the audit and return the request."""
    info = RequestInfo.of(row)
    names = ("kind", "task", "statuses", "since", "until", "total", "created", "now")
    values = {name: as_json(getattr(info, name)) for name in names}
    new = {"request_id": info.id, **values}
    edit = audit.Edit(owner=info.owner, name=info.name or "", action=action, new=new)
    audit.record(context, session, [edit], now=now)
    return info


def _check_id(request_id: object) -> None:
    checks.check_integer("request_id", request_id, minimum=1, maximum=2**63 - 1)
