"""The failed runs of a time, by task and error."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.api.lists.history import filter_of
from celery_dynbeat.api.results.base import Info
from celery_dynbeat.common.text import error_cause
from celery_dynbeat.process.context import Context
from celery_dynbeat.store.runs import run_pages
from celery_dynbeat.store.runs.run_filters import UNSUCCESSFUL

#: The maximum number of runs of a group that are returned one by one.
MAX_RUNS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup(Info):
    """The failed and lost runs with the same task and error. ``error`` comes from the newest run.

    Errors whose first lines differ only in numbers and UUIDs count as the same error. ``first_at``
    and ``last_at`` are fire times. ``key`` identifies the group, also in another call.
    """

    key: str
    task: str
    error: str
    count: int
    schedules: int
    owners: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun(Info):
    """A run of a group. ``error`` is the first line."""

    id: str
    owner: str
    name: str
    status: str
    scheduled_for: datetime
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures(Info):
    """The groups of a time, the largest first.

    ``runs`` are the newest runs of the group that the call names, up to 100. If ``exact`` is false,
    the search ended before it had read the whole time, so there can be more, older failures.
    """

    groups: Sequence[FailureGroup]
    runs: Sequence[FailedRun]
    exact: bool


def failures(
    context: Context,
    *,
    since: datetime,
    until: datetime | None = None,
    owner: str | None = None,
    task: str | None = None,
    group: str | None = None,
    session: Session | None = None,
) -> Failures:
    """Return the failed and lost runs with since <= fire time < until, by task and error.

    The newest 10,000 runs are searched: on PostgreSQL 10,000 failed ones for all owners, elsewhere
    runs of any status. ``group`` is the ``key`` of the group whose runs are returned. Raises
    InvalidScheduleError.
    """
    matching = filter_of(
        owner=owner,
        name=None,
        status=UNSUCCESSFUL,
        task=task,
        origin=None,
        since=since,
        until=until,
    )
    found = context.read_many(session, lambda session: run_pages.newest(session, matching=matching))
    by_cause: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
    for row in found.rows:
        by_cause[row.task, error_cause(row.error)].append(row)
    groups = {_key(*cause): _group(_key(*cause), rows) for cause, rows in by_cause.items()}
    chosen = next((rows for cause, rows in by_cause.items() if _key(*cause) == group), [])
    return Failures(
        groups=sorted(groups.values(), key=lambda each: (-each.count, each.task, each.error)),
        runs=[_run(row) for row in chosen[:MAX_RUNS]],
        exact=found.last is None,
    )


def _key(task: str, cause: str) -> str:
    return sha256(f"{task}\n{cause}".encode(errors="surrogatepass")).hexdigest()[:16]


def _group(key: str, rows: Sequence[Any]) -> FailureGroup:
    fire_times = [row.scheduled_for for row in rows]
    return FailureGroup(
        key=key,
        task=rows[0].task,
        error=_first_line(rows[0].error),
        count=len(rows),
        schedules=len({(row.owner, row.name) for row in rows}),
        owners=len({row.owner for row in rows}),
        first_at=min(fire_times),
        last_at=max(fire_times),
    )


def _run(row: Any) -> FailedRun:
    return FailedRun(
        id=row.id,
        owner=row.owner,
        name=row.name,
        status=row.status,
        scheduled_for=row.scheduled_for,
        error=_first_line(row.error),
    )


def _first_line(error: str | None) -> str:
    return (error or "").strip().partition("\n")[0]
