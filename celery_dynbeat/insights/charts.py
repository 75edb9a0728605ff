"""The charts of one schedule: its runs by day, and its lag and durations by bucket of time."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.infos import BoundedCount, Info
from celery_dynbeat.common.states import Status, was_started
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.insights.lag import duration_of, lag_of
from celery_dynbeat.insights.subject import spec_of
from celery_dynbeat.planning import ScheduleSpec
from celery_dynbeat.planning.plan import MICROSECOND, next_fire
from celery_dynbeat.planning.upcoming import iter_runs
from celery_dynbeat.process.context import Context, reading
from celery_dynbeat.store import schedules
from celery_dynbeat.store.runs.run_pages import UNSUCCESSFUL
from celery_dynbeat.store.runs.run_spans import count_of_schedule, newest_of_schedule
from celery_dynbeat.store.span_reads import Span
from celery_dynbeat.triggers.base import SEARCH_STEPS
from celery_dynbeat.triggers.zones import LocalDay, day_around

MAX_WEEKS = 53
#: Days after today.
DAYS_AHEAD = 28
#: Runs of one day that are read.
MAX_RUNS_PER_DAY = 300
#: The maximum number of fire times that are computed one by one.
MAX_PLANNED = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarDay(Info):
    """A day of a zone, from ``start_at`` to before ``end_at``.

    - ``total`` is the number of rows in the history whose fire time lies in the day. ``failed`` of
      them failed or were lost, ``skipped`` of them were skipped. If ``total`` is not exact, all
      three are lower bounds.
    - ``planned`` is the number of fire times of the day that have not passed and will have a run.
      If it is not ``planned_exact``, there are at least that many.
    """

    day: date
    start_at: datetime
    end_at: datetime
    total: BoundedCount
    failed: int
    skipped: int
    planned: int
    planned_exact: bool


@reading
def calendar(
    context: Context, session: Session, *, owner: str, name: str, zone: ZoneInfo, weeks: int = 26
) -> Sequence[CalendarDay]:
    """Return the days of ``zone``: ``weeks`` weeks before today, today, and DAYS_AHEAD after it.

    A date that the zone skipped is left out. At most MAX_RUNS_PER_DAY runs of a day are counted.
    Raises NotFoundError, and InvalidArgumentError for ``weeks`` beyond MAX_WEEKS.
    """
    checks.check_integer("weeks", weeks, minimum=1, maximum=MAX_WEEKS)
    now = context.now(session)
    days = days_around(zone, now, before=7 * weeks, after=DAYS_AHEAD)
    row = schedules.get(session, owner=owner, name=name)
    spans = [Span(day.start, day.end) for day in days]
    counts = count_of_schedule(session, schedule_id=row.id, spans=spans, limit=MAX_RUNS_PER_DAY)
    spec = spec_of(context, session, row, steps=SEARCH_STEPS)
    return [
        CalendarDay(
            day=day.date,
            start_at=day.start,
            end_at=day.end,
            total=BoundedCount(count=runs.total, exact=runs.total < MAX_RUNS_PER_DAY),
            failed=runs.failed,
            skipped=runs.skipped,
            planned=planned,
            planned_exact=is_exact,
        )
        for day, runs, (planned, is_exact) in zip(
            days, counts, _planned(spec, row, days, now=now), strict=True
        )
    ]


def days_around(
    zone: ZoneInfo, instant: datetime, *, before: int, after: int
) -> Sequence[LocalDay]:
    """Return the day of ``instant`` with the days around it, oldest first."""
    days = [day_around(zone, instant)]
    for _ in range(before):
        days.insert(0, day_around(zone, days[0].start - MICROSECOND))
    for _ in range(after):
        days.append(day_around(zone, days[-1].end))
    return days


def _planned(
    spec: ScheduleSpec | None, row: Schedule, days: Sequence[LocalDay], *, now: datetime
) -> Iterator[tuple[int, bool]]:
    """Yield how many fire times each day has ahead, and whether it has no more.

    A trigger that cannot be read has none.
    """
    found: list[datetime] = []
    known_until = days[-1].end
    if spec is not None:
        found, is_complete = _first_fire_times(spec, row, until=known_until, now=now)
        known_until = known_until if is_complete else max([now, *found[-1:]])
    for day in days:
        count = bisect_left(found, day.end) - bisect_left(found, day.start)
        if spec is None or count or day.end <= known_until:
            yield count, day.end <= known_until
        else:
            yield _later(spec, row, day)


def _first_fire_times(
    spec: ScheduleSpec, row: Schedule, *, until: datetime, now: datetime
) -> tuple[list[datetime], bool]:
    """Return the first fire times between ``now`` and ``until``, and whether these are all."""
    found: list[datetime] = []
    fire_at = None if row.next_run_at is None else row.next_fire_at
    try:
        if fire_at is not None and row.max_runs is None:
            # Those that have passed do not matter. With max_runs, their runs count.
            fire_at = next_fire(spec, max(fire_at - MICROSECOND, now))
        for each in iter_runs(spec, fire_at, now=now, run_count=row.run_count):
            if each.at <= now:
                continue
            if each.at >= until:
                break
            if len(found) == MAX_PLANNED:
                return found, False
            found.append(each.at)
    except InvalidTriggerError:
        # The searches together take too many steps.
        return found, False
    return found, True


def _later(spec: ScheduleSpec, row: Schedule, day: LocalDay) -> tuple[int, bool]:
    """Return the same for a day after those fire times, based on its first fire time."""
    if row.max_runs is not None:
        # Earlier days may use up the runs.
        return 0, False
    try:
        fire_at = next_fire(spec, day.start - MICROSECOND)
    except InvalidTriggerError:
        return 0, False
    return (0, True) if fire_at is None or fire_at >= day.end else (1, False)


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


@reading
def run_times(
    context: Context,
    session: Session,
    *,
    owner: str,
    name: str,
    span: timedelta | None = None,
    buckets: int = 60,
) -> RunTimes:
    """Return the times of the last ``span`` in ``buckets`` equal buckets.

    Without ``span``, it is the shortest one of SPANS with ENOUGH_RUNS runs. With fewer runs, it is
    the shortest one that has all runs of the longest. Raises NotFoundError, and
    InvalidArgumentError for values beyond MAX_SPAN and MAX_BUCKETS.
    """
    if span is not None and not timedelta(0) < span <= MAX_SPAN:
        raise checks.invalid("span", span, f"must be above zero and at most {MAX_SPAN.days} days")
    checks.check_integer("buckets", buckets, minimum=1, maximum=MAX_BUCKETS)
    now = context.now(session)
    schedule_id = schedules.get(session, owner=owner, name=name).id
    length = span or _shortest_span(session, schedule_id=schedule_id, now=now)
    rows = newest_of_schedule(
        session, schedule_id=schedule_id, since=now - length, until=now, limit=MAX_READ
    )
    bounds = [now - length + length * number / buckets for number in range(buckets + 1)]
    return _run_times(rows, [Span(*each) for each in pairwise(bounds)])


def _shortest_span(session: Session, *, schedule_id: int, now: datetime) -> timedelta:
    rows = newest_of_schedule(
        session, schedule_id=schedule_id, since=now - SPANS[-1], until=now, limit=_MAX_SEARCHED
    )
    executed = [row.fire_at for row in rows if was_started(row.status, row.attempt)]
    if not executed:
        return _EMPTY_SPAN
    oldest = executed[:ENOUGH_RUNS][-1]
    return next(each for each in SPANS if oldest >= now - each)


def _run_times(rows: Sequence[Any], spans: Sequence[Span]) -> RunTimes:
    starts = [each.start for each in spans]
    of_span: defaultdict[int, list[Any]] = defaultdict(list)
    for row in rows:
        of_span[bisect_right(starts, row.fire_at) - 1].append(row)
    failures = [
        FailureDot(at=row.fire_at, run_id=row.id, status=row.status, duration=duration_of(row))
        for row in rows
        if row.status in UNSUCCESSFUL
    ]
    return RunTimes(
        start_at=spans[0].start,
        end_at=spans[-1].end,
        buckets=[_bucket(each, of_span[number]) for number, each in enumerate(spans)],
        failures=failures[:MAX_FAILURES],
        read_since=rows[-1].fire_at if len(rows) == MAX_READ else starts[0],
    )


def _bucket(span: Span, rows: Sequence[Any]) -> TimesBucket:
    lags = [lag for lag in map(lag_of, rows) if lag is not None]
    ended = (duration_of(row) for row in rows if row.status in _COMPLETED)
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
