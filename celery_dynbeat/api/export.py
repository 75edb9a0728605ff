"""All data of an owner as dicts for JSON lines.

Each batch is one read of at most BATCH_SIZE rows, so memory does not grow with the history.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.api.results import Page
from celery_dynbeat.api.results.base import as_json
from celery_dynbeat.api.shared import SharedCalls
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import holds, owners

BATCH_SIZE = 500
#: The version of this format, in the first line.
FORMAT = 1

Line = dict[str, Any]


def lines(
    context: Context, calls: SharedCalls, *, owner: str, session: Session | None
) -> Iterator[Line]:
    """Yield the lines: the owner, then its schedules, runs, changes ..."""
    yield _header(context, owner=owner, session=session)
    yield from _of_pages("schedule", calls.list)
    yield from _of_pages("run", calls.runs)
    yield from _of_pages("change", calls.changes)
    yield from _of_pages("alert", partial(calls.alerts, only_open=False))
    # The pages of ``calls.holds`` would also contain the holds of everything.
    yield from _of_table(context, "hold", partial(holds.page_of_owner, owner=owner), session)


def _header(context: Context, *, owner: str, session: Session | None) -> Line:
    found = context.read(session, partial(owners.values_of, owners=[owner])).get(owner)
    return {
        "record": "owner",
        "format": FORMAT,
        "version": version("celery-dynbeat"),
        "owner": owner,
        "timezone": None if found is None else found.timezone,
        "quiet_hours": None if found is None else found.quiet_hours,
        "exported_at": as_json(context.now(session)),
    }


def _of_pages(record: str, read: Callable[..., Page[Any]]) -> Iterator[Line]:
    after: str | None = None
    while True:
        page = read(limit=BATCH_SIZE, after=after)
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
