"""The lag and duration of a schedule's runs, by bucket of time, with its failures as points.

One read by index has the newest MAX_READ runs of the span. A schedule with more has a chart that
begins later.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.results import Info
from celery_dynbeat.common.states import Status, was_started
from celery_dynbeat.insights.statistics.lag import lag_of
from celery_dynbeat.insights.statistics.subject import schedule_row
from celery_dynbeat.process.context import Context
from celery_dynbeat.store.runs.run_filters import UNSUCCESSFUL
from celery_dynbeat.store.runs.run_spans import newest_of_schedule
from celery_dynbeat.store.span_reads import Span

MAX_SPAN = timedelta(days=366)
#: The spans to choose from, the shortest first.
SPANS = (timedelta(hours=1), timedelta(hours=24), timedelta(days=7), timedelta(days=30))
#: The span of a schedule that has no runs.
_EMPTY_SPAN = timedelta(hours=24)
#: The runs that make a chart, and the rows of the newest runs in which they are searched.
ENOUGH_RUNS = 10
_MAX_SEARCHED = 100
MAX_BUCKETS = 120
#: Runs of the span that are read, and failures that are shown.
MAX_READ, MAX_FAILURES = 10_000, 200
#: The statuses of a run that has run to its end.
_COMPLETED = (Status.SUCCEEDED, Status.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimesBucket(Info):
    """The times of the runs whose fire time lies from ``start_at`` to before ``end_at``.

    - ``count`` is the number of runs without skipped fire times. A run that its task skipped
      counts.
    - ``lag_p50`` and ``lag_max`` are the median and the maximum of the time from the fire time, or
      the end of a wait, to the send. Manual runs, reruns and backfills have no lag.
    - ``duration_p50`` and ``duration_max`` are the median and the maximum of the time from start to
      end of the succeeded and failed runs.
    - A time is None if no run has it.
    """

    start_at: datetime
    end_at: datetime
    count: int
    lag_p50: timedelta | None
    lag_max: timedelta | None
    duration_p50: timedelta | None
    duration_max: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDot(Info):
    """A failed or lost run. ``at`` is its fire time. ``duration`` is None if it did not start."""

    at: datetime
    run_id: str
    status: str
    duration: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimes(Info):
    """The times of a schedule. ``buckets`` are the oldest first, ``failures`` the newest first.

    The runs with a fire time from ``read_since`` on were read. Earlier buckets are empty or have a
    part of their runs. ``failures`` are the newest MAX_FAILURES failed and lost runs of them.
    """

    start_at: datetime
    end_at: datetime
    buckets: Sequence[TimesBucket]
    failures: Sequence[FailureDot]
    read_since: datetime

    @property
    def is_cut(self) -> bool:
        """Whether older runs of the span were not read."""
        return self.read_since > self.start_at


def run_times(
    context: Context,
    *,
    owner: str,
    name: str,
    span: timedelta | None = None,
    buckets: int = 60,
    session: Session | None = None,
) -> RunTimes:
    """Return the times of the last ``span`` in ``buckets`` equal buckets.

    Without ``span``, it is the shortest one of SPANS with ENOUGH_RUNS runs. With fewer runs, it is
    the shortest one that has all runs of the longest. Raises ScheduleNotFoundError, and
    InvalidScheduleError for values beyond MAX_SPAN and MAX_BUCKETS.
    """
    if span is not None and not timedelta(0) < span <= MAX_SPAN:
        raise checks.invalid("span", span, f"must be above zero and at most {MAX_SPAN.days} days")
    checks.check_integer("buckets", buckets, minimum=1, maximum=MAX_BUCKETS)
    now = context.now(session)

    def work(session: Session) -> RunTimes:
        schedule_id = schedule_row(session, owner=owner, name=name).id
        length = span or _shortest_span(session, schedule_id=schedule_id, now=now)
        rows = newest_of_schedule(
            session, schedule_id=schedule_id, since=now - length, until=now, limit=MAX_READ
        )
        return _run_times(rows, _equal_spans(now - length, now, buckets))

    return context.read_many(session, work)


def _shortest_span(session: Session, *, schedule_id: int, now: datetime) -> timedelta:
    rows = newest_of_schedule(
        session, schedule_id=schedule_id, since=now - SPANS[-1], until=now, limit=_MAX_SEARCHED
    )
    executed = [row.scheduled_for for row in rows if was_started(row.status, row.attempt)]
    if not executed:
        return _EMPTY_SPAN
    oldest = executed[:ENOUGH_RUNS][-1]
    return next(each for each in SPANS if oldest >= now - each)


def _equal_spans(start: datetime, end: datetime, count: int) -> Sequence[Span]:
    bounds = [start + (end - start) * number / count for number in range(count + 1)]
    return [Span(*each) for each in pairwise(bounds)]


def _run_times(rows: Sequence[Any], spans: Sequence[Span]) -> RunTimes:
    starts = [each.start for each in spans]
    of_span: defaultdict[int, list[Any]] = defaultdict(list)
    for row in rows:
        of_span[bisect_right(starts, row.scheduled_for) - 1].append(row)
    failures = [
        FailureDot(at=row.scheduled_for, run_id=row.id, status=row.status, duration=_duration(row))
        for row in rows
        if row.status in UNSUCCESSFUL
    ]
    return RunTimes(
        start_at=spans[0].start,
        end_at=spans[-1].end,
        buckets=[_bucket(each, of_span[number]) for number, each in enumerate(spans)],
        failures=failures[:MAX_FAILURES],
        read_since=rows[-1].scheduled_for if len(rows) == MAX_READ else starts[0],
    )


def _bucket(span: Span, rows: Sequence[Any]) -> TimesBucket:
    lags = [lag for lag in map(lag_of, rows) if lag is not None]
    ended = (_duration(row) for row in rows if row.status in _COMPLETED)
    durations = [each for each in ended if each is not None]
    return TimesBucket(
        start_at=span.start,
        end_at=span.end,
        count=sum(was_started(row.status, row.attempt) for row in rows),
        lag_p50=median(lags) if lags else None,  # type: ignore[type-var]
        lag_max=max(lags, default=None),
        duration_p50=median(durations) if durations else None,  # type: ignore[type-var]
        duration_max=max(durations, default=None),
    )


def _duration(row: Any) -> timedelta | None:
    """Return the time from start to end, at least zero, because two workers' clocks can differ."""
    if row.started_at is None or row.finished_at is None:
        return None
    duration: timedelta = row.finished_at - row.started_at
    return max(duration, timedelta(0))
