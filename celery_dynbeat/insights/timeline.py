"""Past runs and future ones on one axis: bars and ticks for some schedules, a histogram for many.

    up to MAX_SCHEDULES and MAX_MARKS   a lane for each owner, task or tag
    more in the window                  bins of time; schedules_of_bin() names the schedules of one

If no owner is given, a past run belongs to the window in which it was recorded. If an owner is
given, it belongs to the window of its fire time. This differs for late runs, reruns and backfills.
In a histogram without a filter, a run belongs to the bin in which it ended. The rollup counts these
runs. With a filter, the newest runs of the window are counted.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.filters import checked
from celery_dynbeat.api.forecast import PlannedTicks, count_planned, follow, planned_ticks
from celery_dynbeat.common.filters import ScheduleFilter
from celery_dynbeat.process.context import Context, reading
from celery_dynbeat.store import rollups
from celery_dynbeat.store.runs import run_spans
from celery_dynbeat.store.runs.run_spans import RunWindow
from celery_dynbeat.store.schedules import schedule_pages, tags_of
from celery_dynbeat.store.span_reads import Span

#: Schedules that the lanes show.
MAX_SCHEDULES = 200
#: The maximum number of schedules whose upcoming runs are listed.
MAX_LISTED = 500
#: Past runs and upcoming runs that the lanes show. More of them overlap on any screen, and each
#: takes a tenth of a millisecond to draw.
MAX_MARKS = 1_000
#: The maximum number of upcoming runs that are counted one by one.
MAX_TICKS = 5_000
MAX_WINDOW = timedelta(days=366)
MAX_BINS = 400
_WIDTHS = tuple(
    timedelta(minutes=minutes)
    for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 10_080)
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

GroupBy: TypeAlias = Literal["owner", "task", "tag"]
#: An instant at which a schedule runs, with the row of the schedule.
Tick: TypeAlias = tuple[datetime, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The runs of one owner, task or tag, oldest first; ``label`` "" without a tag.

    ``bars`` are rows of past runs. The fire time of a rerun is the fire time that it repeats.
    """

    label: str
    bars: Sequence[Any]
    ticks: Sequence[Tick]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """The runs from ``start_at`` to before ``end_at``.

    - ``past`` is the number of runs without skipped ones. ``failed`` of them failed or were lost.
      Without a filter, these are the runs that ended in the bin.
    - ``planned`` is the number of upcoming runs. Due runs count in the bin of ``now``.
    - ``more`` means that the numbers of past runs are lower bounds.
    """

    start_at: datetime
    end_at: datetime
    past: int
    failed: int
    planned: int
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The past and upcoming runs from ``since`` to before ``until``.

    - ``lanes`` are sorted by label. A schedule with several tags is in several lanes. They are
      empty if ``is_histogram``.
    - ``bins`` are the bins of a histogram, oldest first. The first begins at or before ``since``.
    - ``is_cut`` is true if the lanes do not contain the oldest past runs or the last future runs.
    - ``planned_is_at_least``: there can be more upcoming runs than the bins have.
    """

    since: datetime
    until: datetime
    now: datetime
    group_by: str
    is_histogram: bool
    lanes: Sequence[Lane] = ()
    bins: Sequence[Bin] = ()
    is_cut: bool = False
    planned_is_at_least: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BinSchedule:
    """A schedule with its numbers of past, failed and planned runs in the bin."""

    owner: str
    name: str
    task: str
    past: int = 0
    failed: int = 0
    planned: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BinSchedules:
    """The schedules with the most runs in a bin, ``more`` if there can be others."""

    schedules: Sequence[BinSchedule]
    more: bool


class _Window(NamedTuple):
    """The arguments of a timeline, checked."""

    matching: ScheduleFilter
    since: datetime
    until: datetime
    now: datetime

    @property
    def counts_by_end(self) -> bool:
        """Whether the runs of all schedules match. Their counts come from the rollup."""
        return self.matching == ScheduleFilter()

    @property
    def times(self) -> dict[str, datetime]:
        """The instants, for the calls that follow schedules through the window."""
        return {"now": self.now, "since": self.since, "until": self.until}

    def past(self, session: Session, *, by_end: bool = False) -> RunWindow | None:
        """Return the window of the past runs, or None if it lies in the future."""
        end = min(self.until, self.now)
        if self.since >= end:
            return None
        return run_spans.bounded_window(
            session, matching=self.matching, since=self.since, until=end, by_end=by_end
        )


@reading
def timeline(
    context: Context,
    session: Session,
    /,
    *,
    since: datetime,
    until: datetime,
    group_by: GroupBy = "owner",
    now: datetime | None = None,
    **matching: str | None,
) -> Timeline:
    """Return what ran and what will run in [since, until), by default at the database's ``now``.

    ``matching`` are an owner, a task and a tag. Raises InvalidArgumentError for a window that is
    empty or longer than MAX_WINDOW.
    """
    checks.check_one_of("group_by", group_by, "owner", "task", "tag")
    given = {"since": since, "until": until}
    window = _window(given, matching, now=now or context.now(session))
    spans = bins_of(window.since, window.until)
    whole = window._replace(since=spans[0].start, until=spans[-1].end)
    ticks = _future_runs(context, session, whole)
    lanes = None if ticks is None else _lanes(session, window, ticks, group_by)
    drawn = lanes or _histogram(context, session, whole, spans=spans, ticks=ticks)
    shown: dict[str, Any] = {**window.times, **drawn}
    return Timeline(group_by=group_by, is_histogram=lanes is None, **shown)


def _window(given: Mapping[str, object], matching: Mapping[str, Any], *, now: datetime) -> _Window:
    """Return the window of the two instants, by their names. Raises InvalidArgumentError."""
    start, end = (checks.check_required_instant(*each) for each in given.items())
    if not timedelta(0) < end - start <= MAX_WINDOW:
        first, last = given
        rule = f"must be after {first} = {start}, by at most {MAX_WINDOW.days} days"
        raise checks.invalid(last, end, rule)
    return _Window(checked(ScheduleFilter(**matching)), start, end, now)


def bins_of(since: datetime, until: datetime) -> Sequence[Span]:
    """Return at most MAX_BINS + 1 equal bins that contain the window.

    They begin at multiples of their width, which is a minute for windows up to six hours.
    """
    widths = (width for width in _WIDTHS if (until - since) / width <= MAX_BINS)
    width = next(widths, _WIDTHS[-1])
    start = _EPOCH + (since - _EPOCH) // width * width
    bins = []
    while start < until:
        bins.append(Span(start, start + width))
        start += width
    return bins


def _future_runs(context: Context, session: Session, window: _Window) -> PlannedTicks | None:
    """Return the upcoming runs.

    None means that more than MAX_LISTED schedules run before the end of the window.
    """
    if window.until <= window.now:
        return PlannedTicks([], is_cut=False)
    planned = schedule_pages.next_runs(
        session, matching=window.matching, until=window.until, limit=MAX_LISTED
    )
    if planned.is_more:
        return None
    return planned_ticks(
        context,
        session,
        planned.rows,
        now=window.now,
        since=window.since,
        until=window.until,
        limit=MAX_TICKS,
    )


def _lanes(
    session: Session, window: _Window, ticks: PlannedTicks, group_by: GroupBy
) -> dict[str, Any] | None:
    """Return the lanes, or None if there are too many schedules or runs for them."""
    inside = [each for each in ticks.ticks if window.since <= each[0] < window.until]
    names = {(row.owner, row.name) for _, row in inside}
    runs = window.past(session)
    if runs is not None and len(names) <= MAX_SCHEDULES:
        names.update(run_spans.schedules_of(session, runs, limit=MAX_SCHEDULES + 1))
    if len(names) > MAX_SCHEDULES:
        return None
    bars = [] if runs is None else run_spans.runs_of(session, runs, limit=MAX_MARKS + 1)
    if len(bars) + len(inside) > MAX_MARKS:
        return None
    is_cut = ticks.is_cut or (runs is not None and runs.is_cut)
    return {"lanes": _grouped(session, bars, inside, group_by), "is_cut": is_cut}


def _grouped(
    session: Session, bars: Sequence[Any], ticks: Sequence[Tick], group_by: GroupBy
) -> Sequence[Lane]:
    tags: Mapping[int, Sequence[str]] = {}
    if group_by == "tag":
        tags = tags_of(session, {run.schedule_id for run in bars} - {None})
    past: defaultdict[str, list[Any]] = defaultdict(list)
    future: defaultdict[str, list[Tick]] = defaultdict(list)
    for run in sorted(bars, key=lambda run: (run.fire_at, run.id)):
        for label in _labels(run, tags.get(run.schedule_id, ()), group_by):
            past[label].append(run)
    for at, row in ticks:
        for label in _labels(row, row.tags, group_by):
            future[label].append((at, row))
    labels = sorted({*past, *future})
    return [Lane(label=label, bars=past[label], ticks=future[label]) for label in labels]


def _labels(row: Any, tags: Collection[str], group_by: GroupBy) -> Iterable[str]:
    if group_by == "tag":
        return tags or [""]
    return [row.owner if group_by == "owner" else row.task]


class _Ran(NamedTuple):
    """The numbers of past runs of a bin. With ``more``, they are lower bounds."""

    past: int = 0
    failed: int = 0
    more: bool = False


def _histogram(
    context: Context,
    session: Session,
    window: _Window,
    *,
    spans: Sequence[Span],
    ticks: PlannedTicks | None,
) -> dict[str, Any]:
    count = _count_ended if window.counts_by_end else _count_newest
    is_at_least = False
    if ticks is None or ticks.is_cut:
        found = count_planned(context, session, window.matching, **window.times)
        minutes = [(each.minute, runs) for each, runs in found.runs.items()]
        planned, is_at_least = _sums_of_minutes(minutes, spans), found.is_at_least
    else:
        planned = _count_instants([at for at, _ in ticks.ticks], spans)
    bins = [
        Bin(start_at=span.start, end_at=span.end, planned=number, **ran._asdict())
        for span, ran, number in zip(spans, count(session, window, spans), planned, strict=True)
    ]
    return {"bins": bins, "planned_is_at_least": is_at_least}


def _count_ended(session: Session, window: _Window, spans: Sequence[Span]) -> Sequence[_Ran]:
    """Count the runs that ended in each bin, from the rollup and from the newest runs."""
    newest, known_until = rollups.live_minutes(session, now=window.now)
    counts = []
    for span, (runs, failed) in zip(spans, rollups.count_spans(session, spans), strict=True):
        live = [each for at, each in newest.items() if span.start <= at < span.end]
        counts.append(
            _Ran(
                runs + sum(each.ended for each in live),
                failed + sum(each.unsuccessful for each in live),
                more=span.start < window.now and min(span.end, window.now) > known_until,
            )
        )
    return counts


def _count_newest(session: Session, window: _Window, spans: Sequence[Span]) -> Sequence[_Ran]:
    """Count the newest runs of the window in each bin."""
    runs = window.past(session)
    if runs is None:
        return [_Ran()] * len(spans)
    rows = run_spans.instants_of(session, runs)
    every = sorted(row.at for row in rows)
    failed = sorted(row.at for row in rows if row.is_failed)
    return [
        # Older runs were not read.
        _Ran(past, unsuccessful, more=runs.is_cut and span.start < runs.since)
        for past, unsuccessful, span in zip(
            _count_instants(every, spans), _count_instants(failed, spans), spans, strict=True
        )
    ]


def _count_instants(instants: Sequence[datetime], spans: Sequence[Span]) -> Sequence[int]:
    """Return how many of the sorted instants lie in each span."""
    return [bisect_left(instants, end) - bisect_left(instants, start) for start, end in spans]


def _sums_of_minutes(
    minutes: Iterable[tuple[datetime, int]], spans: Sequence[Span]
) -> Sequence[int]:
    """Return the sum of the numbers of the minutes in each of the adjacent spans."""
    sums = [0] * len(spans)
    start, width = spans[0].start, spans[0].end - spans[0].start
    for at, number in minutes:
        sums[(at - start) // width] += number
    return sums


@reading
def schedules_of_bin(
    context: Context,
    session: Session,
    /,
    *,
    start_at: datetime,
    end_at: datetime,
    limit: int = 50,
    now: datetime | None = None,
    **matching: str | None,
) -> BinSchedules:
    """Return up to ``limit`` schedules with runs in [start_at, end_at), those with most runs first.

    The numbers agree with ``timeline`` for the same filter. Raises InvalidArgumentError.
    """
    checks.check_limit("limit", limit)
    given = {"start_at": start_at, "end_at": end_at}
    window = _window(given, matching, now=now or context.now(session))
    past, is_cut = _past_of_bin(session, window, limit=limit)
    planned, is_more = _planned_of_bin(context, session, window, limit=limit)
    found: dict[tuple[str, str], BinSchedule] = {
        (row.owner, row.name): BinSchedule(
            owner=row.owner,
            name=row.name,
            task=row.task,
            past=int(row.runs),
            failed=int(row.failed or 0),
        )
        for row in past
    }
    for row in planned:
        key = (row.owner, row.name)
        counted = found.get(key) or BinSchedule(owner=row.owner, name=row.name, task=row.task)
        found[key] = replace(counted, planned=counted.planned + 1)
    most = sorted(
        found.values(), key=lambda each: (-each.past - each.planned, each.owner, each.name)
    )
    more = is_cut or is_more or len(most) > limit
    return BinSchedules(schedules=most[:limit], more=more)


def _past_of_bin(session: Session, window: _Window, *, limit: int) -> tuple[Sequence[Any], bool]:
    runs = window.past(session, by_end=window.counts_by_end)
    if runs is None:
        return [], False
    rows = run_spans.counts_by_schedule(session, runs, limit=limit + 1)
    return rows, runs.is_cut or len(rows) > limit


def _planned_of_bin(
    context: Context, session: Session, window: _Window, *, limit: int
) -> tuple[Sequence[Any], bool]:
    """Return the row of a schedule for each of its upcoming runs."""
    if window.until <= window.now:
        return [], False
    followed = follow(context, session, window.matching, **window.times)
    others = schedule_pages.next_runs(
        session,
        matching=window.matching,
        # Due schedules run now.
        since=None if window.since <= window.now else window.since,
        until=window.until,
        limit=limit,
        except_for=followed.schedules,
    )
    is_more = followed.ticks.is_cut or followed.schedules.is_more or others.is_more
    return [*(row for _, row in followed.ticks.ticks), *others.rows], is_more
