"""The numbers of the strip above each page: due, late, running and failing."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.api.lists import queries
from celery_dynbeat.api.results import BoundedCount
from celery_dynbeat.api.results.base import Info
from celery_dynbeat.common.run_ids import first_run_id
from celery_dynbeat.common.states import UNSTARTED, State, Status
from celery_dynbeat.insights.statistics.lag import lag_of, percentile
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import health
from celery_dynbeat.store.runs import run_samples
from celery_dynbeat.store.runs.run_filters import UNSUCCESSFUL
from celery_dynbeat.store.schedules import late_work
from celery_dynbeat.store.schedules.late_work import Late

MINUTES = 60
_MINUTE = timedelta(minutes=1)
#: The runs of a minute are sampled at the end of each of these parts of it.
_PARTS = 2
#: Runs that are sampled in each part.
SAMPLE = 15
#: Runs of a minute that are counted.
MAX_COUNTED = 500
#: Runs in which failures are searched.
MAX_FAILED_READ = 5_000
#: Quarantined and failing schedules that are counted.
MAX_SCHEDULES = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteLag(Info):
    """The lag of the runs that were recorded in the minute from ``at``.

    They come from a sample: the last 15 runs of each half minute. ``count`` is the number of lags
    in it. Manual runs, backfills and reruns have no lag. If there is no lag, ``p50`` and ``p99``
    are None.
    """

    at: datetime
    p50: timedelta | None
    p99: timedelta | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteCount(Info):
    """A number of runs that were recorded in the minute from ``at``.

    If it is not ``exact``, it comes from a part of the minute's runs, and there can be more.
    """

    at: datetime
    count: int
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview(Info):
    """The state of an installation at ``now``, by the clock of the database.

    - ``due`` counts schedules whose time has come, up to 1,000; none during a hold of everything.
    - ``overdue`` is the sum of ``overdue_schedules``, as ``count(state="overdue")`` counts them,
      and ``overdue_runs``, which beat sends again. ``oldest_overdue_at`` is when the oldest of them
      was due.
    - ``running`` counts runs that a worker executes, ``pending`` runs that none has started. At
      most 10,000 unfinished runs are read. ``oldest_pending_at`` is when the oldest was recorded.
    - ``quarantined`` and ``failing`` count schedules, up to 1,000.
    - ``failed_last_hour`` counts runs that were recorded in the last 60 minutes, the present one
      included, and failed or were lost. On PostgreSQL it is exact up to 5,000 such runs, elsewhere
      up to 5,000 runs of any status.
    - ``lag_p50`` and ``lag_p99`` are percentiles over the samples of ``lag_by_minute``, weighted by
      the number of runs of each minute.
    - The three lists have 60 items, oldest first; the last is the present minute.
      ``dispatched_by_minute`` counts runs that beat has sent. If a minute has more runs than the
      sample, it is the number of recorded runs, up to 500, times the fraction of sent ones in the
      sample.
    """

    now: datetime
    due: BoundedCount
    overdue: BoundedCount
    overdue_schedules: BoundedCount
    overdue_runs: BoundedCount
    oldest_overdue_at: datetime | None
    running: BoundedCount
    pending: BoundedCount
    oldest_pending_at: datetime | None
    quarantined: BoundedCount
    failing: BoundedCount
    failed_last_hour: BoundedCount
    lag_p50: timedelta | None
    lag_p99: timedelta | None
    lag_by_minute: Sequence[MinuteLag]
    failed_by_minute: Sequence[MinuteCount]
    dispatched_by_minute: Sequence[MinuteCount]


def overview(context: Context, *, session: Session | None = None) -> Overview:
    """Return the numbers of the strip. The number of rows that it reads is bounded."""
    return context.read_many(session, lambda session: _overview(context, session))


def _overview(context: Context, session: Session) -> Overview:
    now = context.now(session)
    return Overview(
        now=now,
        **_late(context, session, now=now),
        **_unfinished(session),
        quarantined=_schedules(context, session, State.QUARANTINED),
        failing=_schedules(context, session, State.FAILING),
        **_last_hour(session, now=now),
    )


def _schedules(context: Context, session: Session, state: State) -> BoundedCount:
    matching = queries.filter_of(context, owner=None, state=state)
    return queries.count(context, session, matching=matching, limit=MAX_SCHEDULES)


def _late(context: Context, session: Session, *, now: datetime) -> dict[str, Any]:
    matching = queries.filter_of(context, owner=None, state=State.OVERDUE)
    schedules = late_work.overdue_schedules(session, matching=matching)
    runs = late_work.overdue_runs(session, now=now)
    due_at = session.scalars(health.due_times_statement(now=now)).all()
    oldest = [late.oldest_at for late in (schedules, runs) if late.oldest_at is not None]
    both = Late(count=schedules.count + runs.count, is_more=schedules.is_more or runs.is_more)
    return {
        "due": BoundedCount(
            count=min(len(due_at), health.MAX_COUNTED), exact=len(due_at) <= health.MAX_COUNTED
        ),
        "overdue": _bounded(both),
        "overdue_schedules": _bounded(schedules),
        "overdue_runs": _bounded(runs),
        "oldest_overdue_at": min(oldest, default=None),
    }


def _bounded(late: Late) -> BoundedCount:
    return BoundedCount(count=late.count, exact=not late.is_more)


def _unfinished(session: Session) -> dict[str, Any]:
    numbers = health.count_unfinished(session)
    return {
        "running": _sum(numbers, [Status.RUNNING]),
        "pending": _sum(numbers, UNSTARTED),
        "oldest_pending_at": late_work.unstarted_runs(session).oldest_at,
    }


def _sum(numbers: Mapping[str, health.Count], statuses: Sequence[str]) -> BoundedCount:
    chosen = [numbers[status] for status in statuses]
    return BoundedCount(
        count=sum(each.count for each in chosen), exact=not any(each.more for each in chosen)
    )


@dataclass(frozen=True, slots=True)
class _Minute:
    """The sampled runs of a minute, and the number of its runs as far as they were counted."""

    at: datetime
    rows: Sequence[Any]
    total: int = 0

    def lags(self) -> Sequence[timedelta]:
        return [lag for lag in map(lag_of, self.rows) if lag is not None]

    def lag(self) -> MinuteLag:
        lags = [(lag, 1.0) for lag in self.lags()]
        p50, p99 = percentile(lags, 0.5), percentile(lags, 0.99)
        return MinuteLag(at=self.at, p50=p50, p99=p99, count=len(lags))

    def weight(self) -> float:
        """Return how many runs of the minute a run of the sample represents."""
        return max(self.total / len(self.rows), 1.0)

    def count(self, is_counted: Callable[[Any], bool]) -> MinuteCount:
        number = sum(map(is_counted, self.rows))
        if self.total <= len(self.rows):
            return MinuteCount(at=self.at, count=number, exact=True)
        return MinuteCount(at=self.at, count=round(number * self.weight()), exact=False)


def _last_hour(session: Session, *, now: datetime) -> dict[str, Any]:
    start = now.replace(second=0, microsecond=0) - (MINUTES - 1) * _MINUTE
    minutes = _minutes(session, start=start)
    weighted = [(lag, minute.weight()) for minute in minutes for lag in minute.lags()]
    return {
        **_failures(session, minutes),
        "lag_p50": percentile(weighted, 0.5),
        "lag_p99": percentile(weighted, 0.99),
        "lag_by_minute": tuple(minute.lag() for minute in minutes),
        "dispatched_by_minute": tuple(
            minute.count(lambda row: row.sent_at is not None) for minute in minutes
        ),
    }


def _minutes(session: Session, *, start: datetime) -> Sequence[_Minute]:
    parts = run_samples.spans_of(start, length=_MINUTE / _PARTS, count=MINUTES * _PARTS)
    sampled: list[list[Any]] = [[] for _ in parts]
    for row in run_samples.sample(session, spans=parts, limit=SAMPLE):
        sampled[row.number].append(row)
    by_minute = [sampled[number : number + _PARTS] for number in range(0, len(parts), _PARTS)]
    minutes = [
        _Minute(start + number * _MINUTE, list(chain(*of_minute)))
        for number, of_minute in enumerate(by_minute)
    ]
    if all(len(of_part) < SAMPLE for of_part in sampled):
        return minutes
    spans = run_samples.spans_of(start, length=_MINUTE, count=MINUTES)
    numbers = run_samples.count(session, spans=spans, limit=MAX_COUNTED)
    return [replace(minute, total=number) for minute, number in zip(minutes, numbers, strict=True)]


def _failures(session: Session, minutes: Sequence[_Minute]) -> dict[str, Any]:
    """Return the failed runs of the hour, and of each minute.

    The search can end before it has read the hour. The samples of the earlier minutes then show
    some of their failures.
    """
    start = minutes[0].at
    found, is_all = run_samples.failed(session, since=start, limit=MAX_FAILED_READ)
    sampled = {row.id for minute in minutes for row in minute.rows if row.status in UNSUCCESSFUL}
    ids = sampled.union(found)
    # Ids are compared, because reading the time of 10,000 ids takes 20 ms.
    starts = [first_run_id(minute.at) for minute in minutes]
    counts = Counter(bisect_right(starts, run_id) - 1 for run_id in ids)
    return {
        "failed_last_hour": BoundedCount(count=len(ids), exact=is_all),
        "failed_by_minute": tuple(
            MinuteCount(at=minute.at, count=counts[number], exact=is_all)
            for number, minute in enumerate(minutes)
        ),
    }
