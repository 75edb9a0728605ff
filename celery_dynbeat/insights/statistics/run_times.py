"""The lag and duration of a schedule's runs, by bucket of time, with its failures as points."""

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
from celery_dynbeat.db.models import Origin
from celery_dynbeat.insights.statistics.subject import schedule_row
from celery_dynbeat.process.context import Context
from celery_dynbeat.store.runs.run_spans import (
    FailedRuns,
    failed_of_schedule,
    newest_of_schedule,
    sample_of_schedule,
)
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
#: Runs of one bucket that are read.
MAX_SAMPLE = 30
MAX_FAILURES = 200
#: The statuses of a run that has run to its end.
_COMPLETED = (Status.SUCCEEDED, Status.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimesBucket(Info):
    """The times of the runs whose fire time lies from ``start_at`` to before ``end_at``.

    - ``count`` is the number of runs that were read: the newest MAX_SAMPLE of the bucket, without
      skipped fire times. A run that its task skipped counts. ``is_sample`` means that the bucket
      can have more.
    - ``lag_p50`` and ``lag_max`` are the median and the maximum of the time from the fire time to
      the send. Manual runs, reruns and backfills have no lag.
    - ``duration_p50`` and ``duration_max`` are the median and the maximum of the time from start to
      end of the succeeded and failed runs.
    - A time is None if no run has it.
    """

    start_at: datetime
    end_at: datetime
    count: int
    is_sample: bool
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

    ``failures`` has all failed and lost runs with a fire time from ``failures_since`` on, at most
    MAX_FAILURES.
    """

    start_at: datetime
    end_at: datetime
    buckets: Sequence[TimesBucket]
    failures: Sequence[FailureDot]
    failures_since: datetime


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
        spans = _equal_spans(now - length, now, buckets)
        rows = sample_of_schedule(session, schedule_id=schedule_id, spans=spans, limit=MAX_SAMPLE)
        of_span: defaultdict[int, list[Any]] = defaultdict(list)
        for row in rows:
            of_span[row.number].append(row)
        whole = Span(spans[0].start, spans[-1].end)
        failed = failed_of_schedule(
            session, schedule_id=schedule_id, since=whole.start, until=whole.end, limit=MAX_FAILURES
        )
        shown = [_bucket(each, of_span[number]) for number, each in enumerate(spans)]
        return _run_times(whole, shown, failed)

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


def _run_times(span: Span, buckets: Sequence[TimesBucket], failed: FailedRuns) -> RunTimes:
    failures = [
        FailureDot(at=row.scheduled_for, run_id=row.id, status=row.status, duration=_duration(row))
        for row in failed.rows
    ]
    return RunTimes(
        start_at=span.start,
        end_at=span.end,
        buckets=buckets,
        failures=failures,
        failures_since=failed.since,
    )


def _bucket(span: Span, rows: Sequence[Any]) -> TimesBucket:
    lags = [
        row.sent_at - row.scheduled_for
        for row in rows
        if row.sent_at is not None and row.origin == Origin.SCHEDULE
    ]
    ended = (_duration(row) for row in rows if row.status in _COMPLETED)
    durations = [each for each in ended if each is not None]
    return TimesBucket(
        start_at=span.start,
        end_at=span.end,
        count=sum(was_started(row.status, row.attempt) for row in rows),
        is_sample=len(rows) == MAX_SAMPLE,
        lag_p50=median(lags) if lags else None,
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
