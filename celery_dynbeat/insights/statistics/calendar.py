"""The runs of a schedule by day: how many it had, and how many are planned."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.results import BoundedCount, Info
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.insights.statistics.subject import schedule_row, upcoming_spec
from celery_dynbeat.planning import ScheduleSpec
from celery_dynbeat.planning.plan import MICROSECOND, next_fire
from celery_dynbeat.planning.upcoming import iter_runs
from celery_dynbeat.process.context import Context
from celery_dynbeat.store.runs.run_spans import RunCounts, count_of_schedule
from celery_dynbeat.store.span_reads import Span
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


class _Planned(NamedTuple):
    number: int = 0
    exact: bool = True


def calendar(
    context: Context,
    *,
    owner: str,
    name: str,
    zone: ZoneInfo,
    weeks: int = 26,
    session: Session | None = None,
) -> Sequence[CalendarDay]:
    """Return the days of ``zone``: ``weeks`` weeks before today, today, and DAYS_AHEAD after it.

    A date that the zone skipped is left out. At most MAX_RUNS_PER_DAY runs of a day are counted.
    Raises ScheduleNotFoundError, and InvalidScheduleError for ``weeks`` beyond MAX_WEEKS.
    """
    checks.check_integer("weeks", weeks, minimum=1, maximum=MAX_WEEKS)
    now = context.now(session)
    days = days_around(zone, now, before=7 * weeks, after=DAYS_AHEAD)

    def work(session: Session) -> Sequence[CalendarDay]:
        row = schedule_row(session, owner=owner, name=name)
        spans = [Span(day.start, day.end) for day in days]
        counts = count_of_schedule(session, schedule_id=row.id, spans=spans, limit=MAX_RUNS_PER_DAY)
        spec = upcoming_spec(context, session, row)
        planned = _plan(spec, row, days, now=now)
        return [_shown(*each) for each in zip(days, counts, planned, strict=True)]

    return context.read_many(session, work)


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


def _shown(day: LocalDay, counts: RunCounts, planned: _Planned) -> CalendarDay:
    total = BoundedCount(count=counts.total, exact=counts.total < MAX_RUNS_PER_DAY)
    return CalendarDay(
        day=day.date,
        start_at=day.start,
        end_at=day.end,
        total=total,
        failed=counts.failed,
        skipped=counts.skipped,
        planned=planned.number,
        planned_exact=planned.exact,
    )


def _plan(
    spec: ScheduleSpec | None, row: Schedule, days: Sequence[LocalDay], *, now: datetime
) -> Sequence[_Planned]:
    """Return what each day has ahead. A trigger that cannot be read has no fire times."""
    if spec is None:
        return [_Planned()] * len(days)
    found, is_complete = _first_fire_times(spec, row, until=days[-1].end, now=now)
    known_until = days[-1].end if is_complete else max([now, *found[-1:]])
    planned = []
    for day in days:
        count = bisect_left(found, day.end) - bisect_left(found, day.start)
        if day.end <= known_until:
            planned.append(_Planned(count))
        else:
            planned.append(_Planned(count, exact=False) if count else _later(spec, row, day))
    return planned


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


def _later(spec: ScheduleSpec, row: Schedule, day: LocalDay) -> _Planned:
    """Return whether a day after those fire times has a fire time, based on its first fire time."""
    if row.max_runs is not None:
        # Earlier days may use up the runs.
        return _Planned(exact=False)
    try:
        fire_at = next_fire(spec, day.start - MICROSECOND)
    except InvalidTriggerError:
        return _Planned(exact=False)
    return _Planned() if fire_at is None or fire_at >= day.end else _Planned(1, exact=False)
