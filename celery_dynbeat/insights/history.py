"""The newest runs: failed ones by task and error, the usage of an owner, the last of schedules."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.filters import checked
from celery_dynbeat.common import states
from celery_dynbeat.common.filters import RunFilter
from celery_dynbeat.common.infos import BoundedCount, Info
from celery_dynbeat.common.run_ids import created_at
from celery_dynbeat.common.states import Origin, was_started
from celery_dynbeat.common.text import error_cause, first_line
from celery_dynbeat.insights.lag import duration_of, lag_of, percentile
from celery_dynbeat.process.context import Context, reading
from celery_dynbeat.store import batches
from celery_dynbeat.store.runs import run_pages, run_spans
from celery_dynbeat.store.runs.run_pages import UNSUCCESSFUL

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


@reading
def failures(
    _context: Context,
    session: Session,
    *,
    since: datetime,
    until: datetime | None = None,
    owner: str | None = None,
    task: str | None = None,
) -> Failures:
    """Return the failed and lost runs with since <= fire time < until, by task and error.

    A run is left out if a rerun of its fire time has succeeded. The newest 10,000 runs are
    searched: on PostgreSQL 10,000 failed ones for all owners, elsewhere runs of any status.
    Raises InvalidArgumentError.
    """
    matching = checked(
        RunFilter(owner=owner, status=UNSUCCESSFUL, task=task, since=since, until=until)
    )
    found = run_pages.newest(session, matching=matching)
    repaired = batches.succeeded_again(session, [_original(row) for row in found.rows])
    by_cause: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
    for row in found.rows:
        if _original(row) not in repaired:
            by_cause[row.task, error_cause(row.error)].append(row)
    groups = map(_group, by_cause.values())
    return Failures(
        groups=sorted(groups, key=lambda each: (-each.count, each.task, each.error)),
        exact=found.last is None,
    )


def _original(row: Any) -> str:
    """Return the id of the run whose fire time this run repeats, or its own id."""
    original: str = row.rerun_of or row.id
    return original


def _group(rows: Sequence[Any]) -> FailureGroup:
    fire_times = [row.fire_at for row in rows]
    labels = dict.fromkeys(f"{row.owner}/{row.name}" if row.owner else row.name for row in rows)
    return FailureGroup(
        task=rows[0].task,
        error=first_line(rows[0].error),
        count=len(rows),
        schedules=len(labels),
        names=[*labels][:_MAX_NAMES],
        owners=len({row.owner for row in rows}),
        first_at=min(fire_times),
        last_at=max(fire_times),
        newest_run=rows[0].id,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerUsage(Info):
    """The runs of an owner: their number, the failed or lost, and the skipped fire times.

    They come from the newest 10,000 rows. The lag covers runs that their schedules made, and is
    None if there are no such runs.
    """

    runs: BoundedCount
    failed: BoundedCount
    skipped: BoundedCount
    lag_p50: timedelta | None
    lag_p99: timedelta | None


@reading
def owner_usage(
    _context: Context,
    session: Session,
    *,
    owner: str,
    since: datetime,
    until: datetime,
) -> OwnerUsage:
    """Return the usage of ``owner`` with since <= fire time <= until."""
    matching = checked(RunFilter(owner=owner, since=since, until=until + timedelta.resolution))
    found = run_pages.newest(session, matching=matching)
    numbers = Counter(row.status for row in found.rows)
    skipped = sum(not was_started(row.status, row.attempt) for row in found.rows)
    lags = [lag for lag in map(lag_of, found.rows) if lag is not None]

    def counted(number: int) -> BoundedCount:
        return BoundedCount(count=number, exact=found.last is None)

    return OwnerUsage(
        runs=counted(numbers.total() - skipped),
        failed=counted(sum(numbers[each] for each in UNSUCCESSFUL)),
        skipped=counted(skipped),
        lag_p50=percentile(lags, 0.5),
        lag_p99=percentile(lags, 0.99),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentRun(Info):
    """The data of a bar in a strip of runs.

    - ``fire_at`` of a rerun is the fire time of the original run.
    - ``lag`` is the time from the fire time to the send; of a run that its schedule did not make,
      from its record; of a run that waited, from the end of its wait.
    - ``queue_time`` is the time from the send to the start. None after a second attempt, whose
      start replaces the first one.
    - ``duration`` is how long the last attempt took, or None while it is unfinished.
    - ``error`` has at most 200 characters.
    """

    id: str
    status: str
    attempt: int
    origin: str
    fire_at: datetime
    fire_count: int
    lag: timedelta | None
    queue_time: timedelta | None
    duration: timedelta | None
    error: str | None


@reading
def recent_runs(
    context: Context, session: Session, *, schedule_ids: Collection[int], limit: int = 30
) -> Mapping[int, Sequence[RecentRun]]:
    """Return the last ``limit`` runs of each schedule, oldest first.

    The result has each id of ``schedule_ids``. On PostgreSQL, one statement reads all runs.
    Elsewhere, it reads the runs of 50 schedules.
    """
    checks.check_limit("limit", limit)
    found: dict[int, list[RecentRun]] = {each: [] for each in sorted(set(schedule_ids))}
    now = context.now(session)
    rows = run_spans.newest_of_each(session, schedule_ids=[*found], until=now, limit=limit)
    for row in sorted(rows, key=lambda row: row.fire_at):
        found[row.schedule_id].append(_recent_run(row))
    return found


def last_errors(context: Context, *, schedule_ids: Collection[int]) -> Mapping[int, str]:
    """Return the first line of the error of the last failed or lost run of each schedule.

    A schedule without such a run among its last 30, or whose run has no error, is left out.
    """
    found = recent_runs(context, schedule_ids=schedule_ids)
    failed = {
        key: [run.error for run in runs if run.status in UNSUCCESSFUL]
        for key, runs in found.items()
    }
    return {key: first_line(errors[-1]) for key, errors in failed.items() if errors and errors[-1]}


def _recent_run(row: Any) -> RecentRun:
    fire_time = row.nominal_at or row.fire_at
    due_at = fire_time if row.origin == Origin.SCHEDULE else created_at(row.id)
    # A worker can be faster than beat, which notes the send after the broker's confirm.
    is_first = row.attempt == 1 and row.sent_at and row.started_at
    return RecentRun(
        id=row.id,
        status=row.status,
        attempt=row.attempt,
        origin=row.origin,
        fire_at=fire_time,
        fire_count=row.fire_count,
        lag=row.sent_at
        and states.lag_of(sent_at=row.sent_at, due_at=due_at, ready_at=row.ready_at),
        queue_time=max(row.started_at - row.sent_at, timedelta(0)) if is_first else None,
        duration=duration_of(row),
        error=row.error,
    )
