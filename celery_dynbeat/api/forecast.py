"""The fire times that many schedules have ahead: one by one, or counted by minute and queue.

The runs of up to MAX_FOLLOWED schedules that can run again are followed through the window. Of all
other schedules only the next run is counted, with one GROUP BY in the order of the due index.

A schedule that a claim has found held has no run before its release. A run that must not overlap
another one counts: how long a run will take is not known.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.results import ForecastInfo, ForecastRow
from celery_dynbeat.broker.task_message import TaskQueues
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.filters import ScheduleFilter
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db.statements import Row
from celery_dynbeat.planning import (
    Calendars,
    ScheduleSpec,
    spec_from_row,
    with_search_budget,
)
from celery_dynbeat.planning.plan import MICROSECOND, earliest_due, next_fire
from celery_dynbeat.planning.upcoming import iter_runs
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import schedules
from celery_dynbeat.store.schedules import schedule_pages
from celery_dynbeat.store.schedules.schedule_pages import PlannedRows
from celery_dynbeat.triggers.base import SEARCH_STEPS, SearchBudget

#: Schedules whose runs after the next one are counted, and the runs of them that are counted.
MAX_FOLLOWED, MAX_FOLLOWED_TICKS = 1_000, 100_000
#: The steps of the searches of these schedules (``triggers.base``).
FOLLOWED_STEPS = 4 * SEARCH_STEPS


@dataclass(frozen=True, slots=True)
class PlannedTicks:
    """Instants at which schedules run, with their rows. ``is_cut`` is true if there are more.

    A trigger that cannot be read has no fire time after the next fire time.
    """

    ticks: Sequence[tuple[datetime, Row]]
    is_cut: bool


def planned_ticks(
    context: Context,
    session: Session,
    rows: Sequence[Row],
    *,
    now: datetime,
    since: datetime,
    until: datetime,
    limit: int,
    steps: int = SEARCH_STEPS,
) -> PlannedTicks:
    """Return up to ``limit`` instants in [since, until) at which the schedules run.

    Each is a fire time with its offset. The first one of a schedule is its ``next_run_at``, or
    ``now`` if that has passed.
    """
    calendars = schedules.calendars_of(session, rows)
    settings = context.settings.for_pass()
    # All triggers share it, so that one call takes at most as long as one costly search.
    budget = SearchBudget(steps)

    def ticks_of(row: Row) -> Iterator[tuple[datetime, Row]]:
        try:
            spec = partial(_spec, settings, row, calendars, budget)
            for at in _ticks(row, spec, now=now, since=since):
                if at >= until:
                    return
                if at >= since:
                    yield at, row
        except InvalidTriggerError:
            return

    found = list(islice(merge(*map(ticks_of, rows), key=itemgetter(0)), limit + 1))
    return PlannedTicks(found[:limit], len(found) > limit or budget.remaining < 0)


class PlannedTick(NamedTuple):
    """What the number of planned runs is counted by. ``options`` of the schedule are JSON."""

    minute: datetime
    task: str
    options: str


class PlannedCounts(NamedTuple):
    """The number of planned runs. ``is_at_least`` means that there can be more."""

    runs: Mapping[PlannedTick, int]
    is_at_least: bool


class Followed(NamedTuple):
    """The runs of the followed schedules in a window, and these schedules."""

    ticks: PlannedTicks
    schedules: PlannedRows


def follow(
    context: Context,
    session: Session,
    matching: ScheduleFilter,
    *,
    now: datetime,
    since: datetime,
    until: datetime,
) -> Followed:
    """Return the runs in [since, until) of the first MAX_FOLLOWED schedules that can run again."""
    found = schedule_pages.recurring(session, matching=matching, until=until, limit=MAX_FOLLOWED)
    ticks = planned_ticks(
        context,
        session,
        found.rows,
        now=now,
        since=since,
        until=until,
        limit=MAX_FOLLOWED_TICKS,
        steps=FOLLOWED_STEPS,
    )
    return Followed(ticks, found)


def count_planned(
    context: Context,
    session: Session,
    matching: ScheduleFilter,
    *,
    now: datetime,
    since: datetime,
    until: datetime,
) -> PlannedCounts:
    """Count the planned runs in [since, until), which are whole minutes. Due runs run now."""
    followed = follow(context, session, matching, now=now, since=since, until=until)
    options = {row.id: json.dumps(row.options) for row in followed.schedules.rows}
    counts = Counter(
        PlannedTick(at.replace(second=0, microsecond=0), row.task, options[row.id])
        for at, row in followed.ticks.ticks
    )
    others = schedule_pages.by_minute(
        session, matching=matching, until=until, except_for=followed.schedules
    )
    for each in others.minutes:
        at = max(each.at, now.replace(second=0, microsecond=0))
        if since <= at < until:
            counts[PlannedTick(at, each.task, each.options)] += each.schedules
    is_at_least = followed.ticks.is_cut or followed.schedules.is_more or others.is_more
    return PlannedCounts(counts, is_at_least)


def _spec(
    settings: Settings,
    row: Row,
    calendars: Calendars,
    budget: SearchBudget,
) -> ScheduleSpec:
    spec = spec_from_row(row, settings, calendars)
    return with_search_budget(spec, budget=budget)


def _ticks(
    row: Row,
    make_spec: Callable[[], ScheduleSpec],
    *,
    now: datetime,
    since: datetime,
) -> Iterator[datetime]:
    first_at = max(row.next_run_at, now)
    if row.skips and row.next_fire_at is not None and row.next_fire_at.isoformat() in row.skips:
        # skip() took out all fire times that are left.
        return
    if row.quiet_hours is None:
        yield first_at
    if row.next_fire_at is None:
        return
    # Read only now, because most schedules run once in a window, which needs no trigger.
    spec, fire_at = make_spec(), row.next_fire_at
    if row.max_runs is None and since > first_at:
        # Fire times that are due before the window do not matter. With max_runs their runs count.
        earliest = earliest_due(spec, since, since=fire_at)
        fire_at = next_fire(spec, max(fire_at, earliest) - MICROSECOND)
    is_first = row.quiet_hours is None
    for each in iter_runs(spec, fire_at, now=first_at, run_count=row.run_count):
        if is_first and (each.run_at == first_at or each.at == row.next_fire_at):
            is_first = False
            continue
        yield each.run_at


WIDTHS = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1)}
#: Minutes or hours of one forecast.
MAX_BINS = 1_440
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Bins(NamedTuple):
    """``number`` bins of equal ``width`` from ``start``."""

    start: datetime
    width: timedelta
    number: int

    @property
    def end(self) -> datetime:
        """The end of the last bin."""
        return self.start + self.number * self.width

    def start_of(self, at: datetime) -> datetime:
        """Return the start of the bin that contains ``at``."""
        return self.start + (at - self.start) // self.width * self.width


def whole_bins(since: datetime, until: datetime, per: str) -> Bins:
    """Return the whole minutes or hours that cover the span. Raises InvalidArgumentError."""
    width = WIDTHS[per]
    start = _EPOCH + (since - _EPOCH) // width * width
    count = -((start - until) // width)
    if not 0 < count <= MAX_BINS or until <= since:
        rule = f"must be after since = {since}, by at most {MAX_BINS * width}"
        raise checks.invalid("until", until, rule)
    return Bins(start, width, count)


def forecast(
    context: Context,
    *,
    bins: Bins,
    per: str,
    now: datetime,
    queue: str | None = None,
    owner: str | None = None,
    session: Session | None = None,
) -> ForecastInfo:
    """Return the runs in ``bins``. ``forecast()`` describes the result."""
    found = context.read_many(
        session,
        lambda session: count_planned(
            context,
            session,
            ScheduleFilter(owner=owner),
            now=now,
            since=bins.start,
            until=bins.end,
        ),
    )
    queues = TaskQueues(context.app, now=now)

    @cache
    def queue_of(task: str, options: str) -> str | None:
        # A router of the application is asked without the arguments of the run.
        return queues.of(task, _parsed(options))

    counts: Counter[tuple[datetime, str | None]] = Counter()
    for each, runs in found.runs.items():
        name = queue_of(each.task, each.options)
        if queue in {None, name}:
            counts[bins.start_of(each.minute), name] += runs
    ordered = sorted(counts.items(), key=lambda item: (item[0][0], item[0][1] or ""))
    return ForecastInfo(
        since=bins.start,
        until=bins.end,
        now=now,
        per=per,
        rows=[ForecastRow(start_at=at, queue=name, runs=runs) for (at, name), runs in ordered],
        is_at_least=found.is_at_least,
    )


def _parsed(options: str) -> dict[str, object]:
    try:
        found = json.loads(options or "{}")
    # Only manual SQL stores such options. Beat quarantines the schedule.
    except (RecursionError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
