"""Past runs and future ones on one axis: bars and ticks for some schedules, a histogram for many.

    up to MAX_SCHEDULES and MAX_MARKS   a row for each owner, task or tag
    more in the window                  bins of time; schedules_of_bin() names the schedules of one

If no owner is given, a past run belongs to the window in which it was recorded. If an owner is
given, it belongs to the window of its fire time. This differs for late runs, reruns and backfills.
In a histogram without a filter, a run belongs to the bin in which it ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.lists import queries
from celery_dynbeat.api.lists.planned_ticks import PlannedTicks, count_planned, planned_ticks
from celery_dynbeat.api.results import Info
from celery_dynbeat.insights.statistics.histogram import (
    Bin,
    bins_from,
    bins_of,
    count_instants,
    count_past,
    sums_of_minutes,
)
from celery_dynbeat.insights.statistics.timeline_rows import GroupBy, TimelineRow, rows_of
from celery_dynbeat.process.context import Context
from celery_dynbeat.store.schedules import planned_runs, window_runs
from celery_dynbeat.store.schedules.schedule_filters import ScheduleFilter
from celery_dynbeat.store.schedules.window_runs import RunWindow
from celery_dynbeat.store.span_reads import Span

#: Schedules that the rows show.
MAX_SCHEDULES = 200
#: The maximum number of schedules whose upcoming runs are listed.
MAX_LISTED = 500
#: Past runs and upcoming runs that the rows show. More of them overlap on any screen, and each
#: takes a tenth of a millisecond to draw.
MAX_MARKS = 1_000
#: The maximum number of upcoming runs that are counted one by one.
MAX_TICKS = 5_000
MAX_WINDOW = timedelta(days=366)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline(Info):
    """The past and upcoming runs from ``since`` to before ``until``.

    - ``rows`` are sorted by label. A schedule with several tags is in several rows. They are empty
      if ``is_histogram``.
    - ``bins`` are the bins of a histogram, oldest first. The first begins at or before ``since``.
    - ``is_cut`` is true if the rows do not contain the oldest past runs or the last future runs.
    - ``planned_is_at_least``: there can be more upcoming runs than the bins have.
    """

    since: datetime
    until: datetime
    now: datetime
    group_by: str
    is_histogram: bool
    rows: Sequence[TimelineRow] = ()
    bins: Sequence[Bin] = ()
    is_cut: bool = False
    planned_is_at_least: bool = False


@dataclass(frozen=True, slots=True)
class _Window:
    """The arguments of a timeline, checked."""

    matching: ScheduleFilter
    since: datetime
    until: datetime
    now: datetime


def timeline(
    context: Context,
    *,
    since: datetime,
    until: datetime,
    owner: str | None = None,
    task: str | None = None,
    tag: str | None = None,
    group_by: GroupBy = "owner",
    now: datetime | None = None,
    session: Session | None = None,
) -> Timeline:
    """Return what ran and what will run in [since, until), by default at the database's ``now``.

    Raises InvalidScheduleError for a window that is empty or longer than MAX_WINDOW.
    """
    checks.check_one_of("group_by", group_by, "owner", "task", "tag")
    matching = queries.filter_of(context, owner=owner, task=task, tag=tag)
    since, until = check_window("since", since, "until", until)
    window = _Window(matching, since, until, context.now(session) if now is None else now)
    return context.read_many(session, lambda session: _read(context, session, window, group_by))


def check_window(
    since_field: str, since: object, until_field: str, until: object
) -> tuple[datetime, datetime]:
    """Return the instants of a window. Raises InvalidScheduleError."""
    start = checks.check_required_instant(since_field, since)
    end = checks.check_required_instant(until_field, until)
    if not timedelta(0) < end - start <= MAX_WINDOW:
        rule = f"must be after {since_field} = {start}, by at most {MAX_WINDOW.days} days"
        raise checks.invalid(until_field, end, rule)
    return start, end


def _read(context: Context, session: Session, window: _Window, group_by: GroupBy) -> Timeline:
    bins = bins_of(window.since, window.until)
    ticks = future_runs(
        context, session, window.matching, bins[0].start, bins[-1].end, now=window.now
    )
    if ticks is None:
        return _histogram(context, session, window, group_by=group_by, bins=bins, ticks=ticks)
    inside = [each for each in ticks.ticks if window.since <= each[0] < window.until]
    names = {(row.owner, row.name) for _, row in inside}
    runs = past_window(session, window.matching, window.since, window.until, now=window.now)
    if runs is not None and len(names) <= MAX_SCHEDULES:
        names.update(window_runs.schedules_of(session, runs, limit=MAX_SCHEDULES + 1))
    if len(names) > MAX_SCHEDULES:
        return _histogram(context, session, window, group_by=group_by, bins=bins, ticks=ticks)
    bars = [] if runs is None else window_runs.runs_of(session, runs, limit=MAX_MARKS + 1)
    if len(bars) + len(inside) > MAX_MARKS:
        return _histogram(context, session, window, group_by=group_by, bins=bins, ticks=ticks)
    is_cut = ticks.is_cut or (runs is not None and runs.is_cut)
    return Timeline(
        since=window.since,
        until=window.until,
        now=window.now,
        group_by=group_by,
        is_histogram=False,
        rows=rows_of(session, bars, inside, group_by),
        is_cut=is_cut,
    )


def past_window(
    session: Session,
    matching: ScheduleFilter,
    since: datetime,
    until: datetime,
    *,
    now: datetime,
    by_end: bool = False,
) -> RunWindow | None:
    """Return the window of the past runs, or None if it lies in the future."""
    end = min(until, now)
    if since >= end:
        return None
    return window_runs.bounded_window(
        session, matching=matching, since=since, until=end, by_end=by_end
    )


def future_runs(
    context: Context,
    session: Session,
    matching: ScheduleFilter,
    since: datetime,
    until: datetime,
    *,
    now: datetime,
) -> PlannedTicks | None:
    """Return the upcoming runs in [since, until).

    None means that more than MAX_LISTED schedules run before ``until``.
    """
    if until <= now:
        return PlannedTicks([], is_cut=False)
    planned = planned_runs.next_runs(session, matching=matching, until=until, limit=MAX_LISTED)
    if planned.is_more:
        return None
    return planned_ticks(
        context, session, planned.rows, now=now, since=since, until=until, limit=MAX_TICKS
    )


def _histogram(
    context: Context,
    session: Session,
    window: _Window,
    *,
    group_by: GroupBy,
    bins: Sequence[Span],
    ticks: PlannedTicks | None,
) -> Timeline:
    past = count_past(session, window.matching, bins, now=window.now)
    is_at_least = False
    if ticks is None or ticks.is_cut:
        found = count_planned(
            context,
            session,
            window.matching,
            now=window.now,
            since=bins[0].start,
            until=bins[-1].end,
        )
        minutes = [(each.minute, runs) for each, runs in found.runs.items()]
        planned, is_at_least = sums_of_minutes(minutes, bins), found.is_at_least
    else:
        planned = count_instants([at for at, _ in ticks.ticks], bins)
    return Timeline(
        since=window.since,
        until=window.until,
        now=window.now,
        group_by=group_by,
        is_histogram=True,
        bins=bins_from(bins, past, planned),
        planned_is_at_least=is_at_least,
    )
