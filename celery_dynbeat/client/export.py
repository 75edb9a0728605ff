"""All data of an owner as dicts for JSON lines.

Each batch is one read of at most BATCH_SIZE rows, so memory does not grow with the history.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any, Protocol

from sqlalchemy.orm import Session

from celery_dynbeat.client.views import AlertInfo, ItemPage, Page, RunPage
from celery_dynbeat.client.views.base import as_json
from celery_dynbeat.client.views.page import ChangePage, RequestPage
from celery_dynbeat.runtime.context import Context
from celery_dynbeat.store import alert_pages, exports

BATCH_SIZE = 500
#: The version of this format, in the first line.
FORMAT = 1

Line = dict[str, Any]


class _Lists(Protocol):
    """The pages of an owner that an export contains."""

    def list(self, *, limit: int, after: str | None, session: Session | None) -> Page: ...

    def runs(self, *, limit: int, after: str | None, session: Session | None) -> RunPage: ...

    def changes(self, *, limit: int, after: str | None, session: Session | None) -> ChangePage: ...

    def requests(
        self, *, limit: int, after: str | None, session: Session | None
    ) -> RequestPage: ...


def lines(
    context: Context, lists: _Lists, *, owner: str, session: Session | None
) -> Iterator[Line]:
    """Yield the lines: the owner, then its schedules, runs, changes, requests ..."""
    yield _header(context, owner=owner, session=session)
    yield from _of_pages("schedule", lists.list, session)
    yield from _of_pages("run", lists.runs, session)
    yield from _of_pages("change", lists.changes, session)
    yield from _of_pages("request", lists.requests, session)
    for record, read in _TABLES.items():
        yield from _of_table(context, record, partial(read, owner=owner), session)


def _header(context: Context, *, owner: str, session: Session | None) -> Line:
    zone = context.read(session, partial(exports.timezone_of, owner=owner))
    return {
        "record": "owner",
        "format": FORMAT,
        "version": version("celery-dynbeat"),
        "owner": owner,
        "timezone": zone,
        "exported_at": as_json(context.now(session)),
    }


def _of_pages(
    record: str, read: Callable[..., ItemPage[Any]], session: Session | None
) -> Iterator[Line]:
    after: str | None = None
    while True:
        page = read(limit=BATCH_SIZE, after=after, session=session)
        for item in page:
            yield {"record": record, **item.to_dict()}
        after = page.cursor
        if after is None:
            return


def _of_table(
    context: Context,
    record: str,
    read: Callable[..., list[Mapping[str, Any]]],
    session: Session | None,
) -> Iterator[Line]:
    after_id = 0
    while True:
        batch = partial(read, after_id=after_id, limit=BATCH_SIZE)
        rows = context.read_many(session, batch)
        for row in rows:
            yield {"record": record, **as_json(row)}
        if len(rows) < BATCH_SIZE:
            return
        after_id = rows[-1]["id"]


def _alerts(session: Session, *, owner: str, after_id: int, limit: int) -> list[Mapping[str, Any]]:
    rows = alert_pages.page(session, owner=owner, only_open=False, after=after_id, limit=limit)
    return [AlertInfo.of(row).to_dict() for row in rows]


_TABLES: Mapping[str, Callable[..., list[Mapping[str, Any]]]] = {
    "alert": _alerts,
    "hold": exports.holds,
}
