"""The failed runs of a time, by task and error."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.api.lists.history import filter_of
from celery_dynbeat.api.results.base import Info
from celery_dynbeat.common.text import error_cause
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import reruns
from celery_dynbeat.store.runs import run_pages
from celery_dynbeat.store.runs.run_filters import UNSUCCESSFUL

_MAX_NAMES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup(Info):
    """The failed and lost runs with the same task and error. ``error`` comes from the newest run.

    - Errors whose first lines differ only in numbers, UUIDs and hexadecimal ids count as the same
      error.
    - ``names`` are up to three of the schedules, the last failed first, as ``user:42/report``.
    - ``first_at`` and ``last_at`` are fire times.
    - ``newest_run`` is the id of the newest run.
    """

    task: str
    error: str
    count: int
    schedules: int
    names: Sequence[str]
    owners: int
    first_at: datetime
    last_at: datetime
    newest_run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures(Info):
    """The groups of a time, the largest first.

    If ``exact`` is false, the search ended before it had read the whole time, so there can be more,
    older failures.
    """

    groups: Sequence[FailureGroup]
    exact: bool


def failures(
    context: Context,
    *,
    since: datetime,
    until: datetime | None = None,
    owner: str | None = None,
    task: str | None = None,
    session: Session | None = None,
) -> Failures:
    """Return the failed and lost runs with since <= fire time < until, by task and error.

    A run is left out if a rerun of its fire time has succeeded. The newest 10,000 runs are
    searched: on PostgreSQL 10,000 failed ones for all owners, elsewhere runs of any status.
    Raises InvalidScheduleError.
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

    def work(session: Session) -> tuple[Sequence[Any], bool]:
        found = run_pages.newest(session, matching=matching)
        repaired = reruns.succeeded_again(session, [_original(row) for row in found.rows])
        return [row for row in found.rows if _original(row) not in repaired], found.last is None

    rows, exact = context.read_many(session, work)
    by_cause: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
    for row in rows:
        by_cause[row.task, error_cause(row.error)].append(row)
    groups = map(_group, by_cause.values())
    return Failures(
        groups=sorted(groups, key=lambda each: (-each.count, each.task, each.error)), exact=exact
    )


def _original(row: Any) -> str:
    """Return the id of the run whose fire time this run repeats, or its own id."""
    original: str = row.rerun_of or row.id
    return original


def _group(rows: Sequence[Any]) -> FailureGroup:
    fire_times = [row.scheduled_for for row in rows]
    labels = list(dict.fromkeys(_label(row) for row in rows))
    return FailureGroup(
        task=rows[0].task,
        error=_first_line(rows[0].error),
        count=len(rows),
        schedules=len(labels),
        names=labels[:_MAX_NAMES],
        owners=len({row.owner for row in rows}),
        first_at=min(fire_times),
        last_at=max(fire_times),
        newest_run=rows[0].id,
    )


def _label(row: Any) -> str:
    return f"{row.owner}/{row.name}" if row.owner else str(row.name)


def _first_line(error: str | None) -> str:
    return (error or "").strip().partition("\n")[0]
