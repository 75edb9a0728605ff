"""The requests of the benchmark of the schedule pages: each page and fragment, with its filters."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import Engine, text

from benchmarks.flower_rows import BIG_OWNER, BUSY, OWNER, RARE_TAG, RARE_TASK, TAG, TASK
from tests.support.cursors import cursor_after

FLOOR = "a static file"
#: An element of each row of a list.
_ROW = "data-row "
_STATES = ("active", "paused", "held", "overdue", "failing", "quarantined", "finished")


@dataclass(frozen=True, slots=True)
class Request:
    """A page with its label. ``contains`` is a text of each correct response."""

    label: str
    path: str
    contains: str = ""


def requests(engine: Engine) -> Sequence[Request]:
    """Return the requests, the smallest first."""
    return [
        _request(FLOOR, "static/page.css"),
        Request("Flower's health check", "/healthcheck", contains="OK"),
        *_schedule_lists(engine),
        *_fragments(),
        *_schedule_pages(),
        *_run_lists(engine),
        *_timelines(),
        _request("beats and workers", "nodes", contains="node0@benchmark"),
        _request("overview strip", "overview", contains="overdue"),
        _request("new schedule", "new", contains="<form"),
        _request("edit a schedule", "edit", contains=BUSY, owner=BIG_OWNER, name=BUSY),
    ]


def _request(label: str, route: str, /, *, contains: str = "", **query: Any) -> Request:
    return Request(label, f"/dynbeat/{route}?{urlencode(query, doseq=True)}", contains)


def _schedule_lists(engine: Engine) -> Iterable[Request]:
    owner, name = _middle(engine)
    queries: dict[str, dict[str, Any]] = {
        "first page": {},
        "middle page": {"after": cursor_after(owner, name)},
        "100 on the page": {"size": 100},
        "by next run": {"order": "next_run_at"},
        **{state: {"state": state} for state in _STATES},
        "failing, by next run": {"state": "failing", "order": "next_run_at"},
        "one owner": {"owner": OWNER},
        "one owner, by next run": {"owner": OWNER, "order": "next_run_at"},
        "the largest owner": {"owner": BIG_OWNER},
        "the largest owner, by next run": {"owner": BIG_OWNER, "order": "next_run_at"},
        "a task": {"task": TASK},
        "a task, by next run": {"task": TASK, "order": "next_run_at"},
        "a tag": {"tag": TAG},
        "name prefix": {"name": "schedule 9"},
        "name prefix, by next run": {"name": "schedule 9", "order": "next_run_at"},
        "name prefix and failing": {"name": "schedule", "state": "failing"},
        "owner, task, tag and name prefix": {
            "owner": BIG_OWNER,
            "task": TASK,
            "tag": TAG,
            "name": "schedule 9",
        },
    }
    rare = {"a rare task": {"task": RARE_TASK}, "a rare tag": {"tag": RARE_TAG}}
    # A page searches 10,000 rows at most. It is then empty, with a link that continues the search.
    can_be_empty = {*rare, "a task", "a tag", "owner, task, tag and name prefix"}
    for label, query in {**queries, **rare}.items():
        contains = "" if label in can_be_empty else _ROW
        yield _request(f"schedules, {label}", "schedules", contains=contains, **query)


def _middle(engine: Engine) -> tuple[str, str]:
    """Return owner and name of a schedule in the middle of the list."""
    query = (
        "SELECT owner, name FROM dynbeat_schedule ORDER BY owner, name LIMIT 1"
        " OFFSET (SELECT count(*) / 2 FROM dynbeat_schedule)"
    )
    with engine.connect() as connection:
        row = connection.execute(text(query)).one()
        return row.owner, row.name


def _fragments() -> Iterable[Request]:
    counts: dict[str, dict[str, Any]] = {
        "all": {},
        "one owner": {"owner": OWNER},
        "the largest owner": {"owner": BIG_OWNER},
        "a task": {"task": TASK},
        "a rare task": {"task": RARE_TASK},
        "a tag": {"tag": TAG},
        "name prefix": {"name": "schedule 9"},
    }
    for label, query in counts.items():
        title = f"numbers of the states, {label}"
        yield _request(title, "schedule_counts", contains="active", **query)


def _schedule_pages() -> Iterable[Request]:
    schedules = {"10 runs": (OWNER, "schedule 42"), "40,000 runs": (BIG_OWNER, BUSY)}
    for label, (owner, name) in schedules.items():
        query = {"owner": owner, "name": name}
        yield _request(f"schedule with {label}", "schedule", contains=_ROW, **query)
        yield _request(f"charts, {label}", "schedule_charts", contains="<svg", **query)
        query = {**query, "calendar": "failed"}
        yield _request(f"charts of failures, {label}", "schedule_charts", contains="<svg", **query)


def _run_lists(engine: Engine) -> Iterable[Request]:
    statuses = {
        "running": ("running", "retrying"),
        "waiting": ("pending", "sent"),
        "succeeded": ("succeeded",),
        "failed": ("failed", "lost"),
        "skipped": ("skipped",),
        "stopped": ("revoked", "expired"),
    }
    queries: dict[str, dict[str, Any]] = {
        "all": {},
        "100 on the page": {"size": 100},
        **{label: {"status": of_label} for label, of_label in statuses.items()},
        "one owner": {"owner": OWNER},
        "the largest owner": {"owner": BIG_OWNER},
        "the largest owner, failed": {"owner": BIG_OWNER, "status": ("failed", "lost")},
        "the largest owner, running": {"owner": BIG_OWNER, "status": ("running", "retrying")},
        "one schedule": {"owner": BIG_OWNER, "name": BUSY},
        "one schedule, failed": {"owner": BIG_OWNER, "name": BUSY, "status": ("failed", "lost")},
        "a task": {"task": TASK},
        "the last hour": {"since": "1h"},
        "failed in the last 7 days": {"since": "7d", "status": ("failed", "lost")},
        "a task, failed in the last 24 h": {
            "task": TASK,
            "since": "24h",
            "status": ("failed", "lost"),
        },
    }
    for label, query in queries.items():
        # The installation has few runs in work. Of a large owner there may be none.
        contains = "" if label == "the largest owner, running" else _ROW
        yield _request(f"runs, {label}", "runs", contains=contains, **query)
    yield _request("runs, a rare task", "runs", task=RARE_TASK)
    for status in ("succeeded", "failed"):
        run_id = _run_id(engine, status)
        yield _request(f"a run that {status}", f"run/{run_id}", contains=run_id)
    yield _request("link from Flower's task page", f"run_link/{run_id}", contains=run_id)


def _run_id(engine: Engine, status: str) -> str:
    query = "SELECT id FROM dynbeat_run WHERE status = :status ORDER BY id DESC LIMIT 1"
    with engine.connect() as connection:
        return str(connection.execute(text(query), {"status": status}).scalar_one())


def _timelines() -> Iterable[Request]:
    filters: dict[str, dict[str, Any]] = {
        "all": {},
        "one owner": {"owner": OWNER},
        "the largest owner": {"owner": BIG_OWNER},
        "a task": {"task": TASK},
        "a tag": {"tag": TAG},
        "by tag": {"group": "tag"},
    }
    for window in ("1h", "1d", "4w"):
        for label, query in filters.items():
            title = f"timeline of {window}, {label}"
            yield _request(title, "timeline", contains="<svg", window=window, **query)
