"""Requests: list, show and cancel them."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from sqlalchemy.orm import Session

from celery_dynbeat.client import audit, checks
from celery_dynbeat.client.acting import acting, current_actor
from celery_dynbeat.client.queries import check_limit
from celery_dynbeat.client.views import RequestInfo, RequestPage, cursors
from celery_dynbeat.client.views.base import as_json
from celery_dynbeat.common.actions import Action
from celery_dynbeat.common.errors import RequestNotFoundError
from celery_dynbeat.common.run_states import RequestKind
from celery_dynbeat.db.models import Request
from celery_dynbeat.runtime.context import Context
from celery_dynbeat.store import requests, schedules
from celery_dynbeat.store.requests import RequestFilter

_NEWEST = "newest_request"


@contextmanager
def acting_as(actor: str | None, reason: str | None) -> Iterator[None]:
    """Record edits with this actor and reason; None means those of the ``acting`` block."""
    preset = current_actor()
    with acting(
        actor=preset.actor if actor is None else actor,
        reason=preset.reason if reason is None else reason,
    ):
        yield


class OneRequestCalls:
    """The calls of OwnerSchedules and Schedules for one request."""

    _context: Context
    #: The owner whose requests and runs the calls see. None: all owners.
    _request_owner: str | None = None

    def get_request(self, request_id: int, *, session: Session | None = None) -> RequestInfo:
        """Return a request with its progress. Raises RequestNotFoundError."""
        _check_id(request_id)

        def work(session: Session) -> RequestInfo:
            return RequestInfo.of(self._find_request(session, request_id))

        return self._context.read(session, work)

    def cancel_request(
        self,
        request_id: int,
        *,
        actor: str | None = None,
        reason: str | None = None,
        session: Session | None = None,
    ) -> RequestInfo:
        """Stop a request and revoke its runs that have not started.

        A request that has ended keeps its ``finished_at``. It becomes ``"cancelled"`` if a run was
        revoked. ``actor`` and ``reason`` are for the audit; ``acting()`` presets them. Raises
        RequestNotFoundError.
        """
        _check_id(request_id)

        def work(session: Session) -> RequestInfo:
            schedule_id = self._find_request(session, request_id).schedule_id
            if schedule_id is not None:
                # The schedule before its request, in the order of all locks.
                schedules.lock_id(session, schedule_id=schedule_id)
            row = self._find_request(session, request_id, for_update=True)
            now = self._context.clock.now()
            _cancel(session, row, now=now)
            return recorded(self._context, session, row, Action.CANCEL_REQUEST, now=now)

        with acting_as(actor, reason):
            return self._context.write(session, work)

    def _find_request(
        self, session: Session, request_id: int, *, for_update: bool = False
    ) -> Request:
        owner = self._request_owner
        row = requests.get(session, request_id=request_id, owner=owner, for_update=for_update)
        if row is None:
            raise RequestNotFoundError(owner=owner, request_id=request_id)
        return row


class OwnerRequestCalls(OneRequestCalls):
    """The calls of OwnerSchedules for requests."""

    owner: str

    def requests(
        self,
        name: str | None = None,
        *,
        kind: str | None = None,
        limit: int = 20,
        after: str | None = None,
        session: Session | None = None,
    ) -> RequestPage:
        """Return one page of up to ``limit`` requests, the newest first.

        ``name`` selects the requests for one schedule, ``kind`` the ``"backfill"`` or ``"rerun"``
        requests. ``after`` is the ``cursor`` of the previous page. ``limit`` is at most 1,000.
        """
        return _page(self._context, session, self.owner, name, kind, limit=limit, after=after)


class RequestCalls(OneRequestCalls):
    """The calls of Schedules for requests."""

    def requests(
        self,
        *,
        owner: str | None = None,
        kind: str | None = None,
        limit: int = 20,
        after: str | None = None,
        session: Session | None = None,
    ) -> RequestPage:
        """Return one page of up to ``limit`` requests, the newest first.

        Without ``owner``, the requests of all owners and those for all owners are returned. The
        other arguments are those of ``for_owner(owner).requests()``.
        """
        if owner is not None:
            checks.check_name("owner", owner, empty=True)
        return _page(self._context, session, owner, None, kind, limit=limit, after=after)


def recorded(
    context: Context, session: Session, row: Request, action: Action, *, now: datetime
) -> RequestInfo:
    """Write the edit of a request to the audit and return the request."""
    info = RequestInfo.of(row)
    names = ("kind", "task", "statuses", "since", "until", "total", "created")
    values = {name: as_json(getattr(info, name)) for name in names}
    new = {"request_id": info.id, **values}
    edit = audit.Edit(owner=info.owner, name=info.name or "", action=action, new=new)
    audit.record(context, session, [edit], now=now)
    return info


def _page(
    context: Context,
    session: Session | None,
    owner: str | None,
    name: str | None,
    kind: str | None,
    *,
    limit: int,
    after: str | None,
) -> RequestPage:
    check_limit("limit", limit)
    if name is not None:
        checks.check_name("name", name)
    if kind is not None:
        kind = RequestKind(checks.check_choice("kind", kind, *map(str, RequestKind)))
    key = None if after is None else cursors.decode(after, order=_NEWEST, parts=_KEY)
    matching = RequestFilter(owner=owner, name=name, kind=kind)

    def work(session: Session) -> RequestPage:
        before = None if key is None else key[0]
        rows = requests.page(session, matching=matching, before=before, limit=limit + 1)
        items = tuple(map(RequestInfo.of, rows[:limit]))
        is_last = len(rows) <= limit
        return RequestPage(items, None if is_last else cursors.encode(_NEWEST, (items[-1].id,)))

    return context.read_many(session, work)


_KEY = (cursors.as_row_id,)


def _check_id(request_id: object) -> None:
    checks.check_integer("request_id", request_id, minimum=1, maximum=2**63 - 1)


def _cancel(session: Session, row: Request, *, now: datetime) -> None:
    reason = f"the {row.kind} was cancelled"
    revoked = requests.revoke_unstarted_runs(session, row, now=now, reason=reason)
    if row.finished_at is None:
        row.finished_at, row.next_run_at, row.cancelled = now, None, True
    elif revoked:
        row.cancelled = True
    session.flush()
