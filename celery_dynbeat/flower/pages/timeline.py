"""The page "Timeline": past runs and future fire times on one axis.

?window=1h                 this long, with now in the middle; it moves with the time
?since=...&until=...       fixed; ISO 8601, without an offset in the zone of the page
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from celery_dynbeat.api.filters import Key
from celery_dynbeat.api.forecast import WIDTHS, Bins, forecast
from celery_dynbeat.api.results import ForecastInfo
from celery_dynbeat.common.errors import InvalidArgumentError
from celery_dynbeat.common.text import escape, format_distance, format_duration, shorten
from celery_dynbeat.flower.base import fragments
from celery_dynbeat.flower.base.fragments import local_time
from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.base.zones import given_instant
from celery_dynbeat.flower.charts.histogram import histogram
from celery_dynbeat.flower.charts.timeline import (
    TimelineBar,
    TimelineRow,
    TimelineTick,
    timeline_legend,
)
from celery_dynbeat.flower.charts.timeline import timeline as timeline_chart
from celery_dynbeat.insights.timeline import (
    Bin,
    BinSchedules,
    Lane,
    Tick,
    Timeline,
    schedules_of_bin,
    timeline,
)

#: Gives the URL of a route with arguments.
Link = Callable[..., str]
#: Rows of the table that shows the same as the chart.
MAX_LISTED = 200
#: The labels of rows without a name.
_UNNAMED = {"owner": "(application)", "task": "(no task)", "tag": "(no tag)"}
GROUPS = ("owner", "task", "tag")
#: The length of the forecast, and the seconds until it is made again.
FORECAST_MINUTES, FORECAST_EVERY = 360, 60
_AROUND = timedelta(minutes=30)
#: The buttons of the page.
LENGTHS = {
    "15m": timedelta(minutes=15),
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "1d": timedelta(days=1),
    "1w": timedelta(weeks=1),
    "4w": timedelta(weeks=4),
}
DEFAULT = "1h"
MAX_LENGTH = timedelta(weeks=5)


@dataclass(frozen=True, slots=True)
class Marks:
    """Makes marks for a page: its zone, its time, and its URLs."""

    zone: ZoneInfo
    now: datetime
    link: Link

    def row(self, lane: Lane, *, group_by: str) -> TimelineRow:
        """Return the row of a chart. Its label leads to the schedules behind it."""
        return TimelineRow(
            label=escape(lane.label) or _UNNAMED[group_by],
            href=self.link("dynbeat_schedules", **{group_by: lane.label}),
            bars=[self._bar(run) for run in lane.bars],
            ticks=[self._tick(tick) for tick in lane.ticks],
        )

    def bin_title(self, each: Bin) -> str:
        """Return the numbers of a bar of the histogram."""
        more = " or more" if each.more else ""
        return (
            f"{self._time(each.start_at)} to {self._time(each.end_at)}: {each.past:,} ran"
            f" ({each.failed:,} failed), {each.planned:,} planned{more}"
        )

    def _bar(self, run: Any) -> TimelineBar:
        start = run.started_at or run.fire_at
        took = ""
        if run.started_at is not None and run.finished_at is not None:
            took = f", took {format_duration(run.finished_at - run.started_at)}"
        title = (
            f"{escape(run.name)}: {run.status}, {self._time(run.fire_at)}"
            f" ({format_distance(run.fire_at, now=self.now)}){took}"
        )
        # A run that never started has no end on the axis either.
        end = (run.finished_at or None) if run.started_at is not None else start
        return TimelineBar(
            start_at=start,
            end_at=end,
            status=run.status,
            title=title,
            href=self.link("dynbeat_run", run.id),
        )

    def _tick(self, tick: Tick) -> TimelineTick:
        at, schedule = tick
        distance = format_distance(at, now=self.now)
        return TimelineTick(
            at=at,
            title=f"{escape(schedule.name)}: {self._time(at)} ({distance})",
            href=self.link("dynbeat_schedule", owner=schedule.owner, name=schedule.name),
        )

    def _time(self, at: datetime) -> str:
        return local_time(at, self.zone)


def listed(lanes: Sequence[Lane]) -> list[tuple[datetime, Any]]:
    """Return the runs and schedules of the table, ordered by time, at most MAX_LISTED."""
    bars = ((run.fire_at, run) for lane in lanes for run in lane.bars)
    ticks = (tick for lane in lanes for tick in lane.ticks)
    ordered = sorted((*bars, *ticks), key=lambda each: (each[0], each[1].owner, each[1].name))
    return ordered[:MAX_LISTED]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindow:
    """A window of time. ``name`` is the name of its button, "" for a fixed window."""

    name: str
    since: datetime
    until: datetime

    def shifted(self, parts: float) -> "TimeWindow":
        """Return a fixed window that begins later by ``parts`` of the length."""
        distance = (self.until - self.since) * parts
        return TimeWindow(name="", since=self.since + distance, until=self.until + distance)


def time_window(*, name: str, since: str, until: str, zone: ZoneInfo, now: datetime) -> TimeWindow:
    """Return the window. Raises InvalidArgumentError with the argument, its rule and the fix."""
    if since or until:
        return _fixed(
            given_instant("since", since, zone=zone, now=now),
            given_instant("until", until, zone=zone, now=now),
        )
    length = LENGTHS.get(name or DEFAULT)
    if length is None:
        rule = f"must be one of {', '.join(LENGTHS)}"
        raise InvalidArgumentError(f"window = {shorten(name)}: {rule}", field="window")
    return TimeWindow(name=name or DEFAULT, since=now - length / 2, until=now + length / 2)


def _fixed(since: datetime, until: datetime) -> TimeWindow:
    if not timedelta(0) < until - since <= MAX_LENGTH:
        rule = f"must be after since = {since.isoformat()}, by at most {MAX_LENGTH.days} days"
        raise InvalidArgumentError(f"until = {until.isoformat()}: {rule}", field="until")
    return TimeWindow(name="", since=since, until=until)


class TimelinePage(PageHandler):
    """Past runs and future fire times of the schedules that match, by owner, task or tag."""

    tab = "timeline"
    arguments = frozenset({*GROUPS, "group", "window", "since", "until", "bin"})

    chip_keys = (
        *(Key(name=name) for name in GROUPS),
        Key(name="since", label="window", end="until", is_instant=True),
        Key(name="bin", label="open bar", is_instant=True),
    )

    async def get(self) -> None:
        """Render the page."""
        error = None
        try:
            values = await self.call(self._read)
        except InvalidArgumentError as invalid:
            # The form stays, so that the argument can be corrected.
            error, values = invalid, {"found": None, "window": None}
        self.set_status(400 if error else 200)
        await self.render_page(
            "timeline.html",
            error=error,
            lengths=list(LENGTHS),
            groups=GROUPS,
            group_by=self.argument("group") or GROUPS[0],
            **values,
        )

    def _filter(self) -> dict[str, Any]:
        given = {name: self.argument(name) for name in GROUPS}
        # The owner "" is the application, and an empty field of the form is not a filter.
        return {name: value for name, value in given.items() if value}

    def _read(self) -> dict[str, Any]:
        context = self.dynbeat.context
        now = context.clock.now()
        window = time_window(
            name=self.argument("window"),
            since=self.argument("since"),
            until=self.argument("until"),
            zone=self.zone.common,
            now=now,
        )
        group_by: Any = self.argument("group") or GROUPS[0]
        found = timeline(
            context,
            since=window.since,
            until=window.until,
            group_by=group_by,
            now=now,
            **self._filter(),
        )
        return {"found": found, "window": window, **self._shown(found, window)}

    def _shown(self, found: Timeline, window: TimeWindow) -> dict[str, Any]:
        marks = Marks(self.zone.common, found.now, self.link)
        opened = self._opened_bin(found.now)
        table = [] if found.is_histogram else listed(found.lanes)
        return {
            "chart": self._chart(found, marks),
            "legend": timeline_legend(),
            "table": table,
            "is_table_cut": len(table) == MAX_LISTED,
            "opened": opened,
            "earlier": self._at(window.shifted(-0.5)),
            "later": self._at(window.shifted(0.5)),
        }

    def _at(self, window: TimeWindow) -> str:
        since, until = window.since.isoformat(), window.until.isoformat()
        return self.here(window=None, since=since, until=until, bin=None)

    def _chart(self, found: Timeline, marks: Marks) -> str:
        zone = self.zone.common
        start, end = found.since.astimezone(zone), found.until.astimezone(zone)
        now = found.now.astimezone(zone)
        if found.is_histogram:
            return histogram(
                found.bins,
                title=marks.bin_title,
                href=self._bin_url,
                start_at=start,
                end_at=end,
                now=now,
                label="Runs over time",
            )
        rows = [marks.row(lane, group_by=found.group_by) for lane in found.lanes]
        label = f"Runs by {found.group_by}"
        return timeline_chart(rows, start_at=start, end_at=end, now=now, label=label)

    def _bin_url(self, each: Bin) -> str:
        """Return the URL that shows the schedules behind a bar of the histogram."""
        return self.here(bin=f"{each.start_at.isoformat()}/{each.end_at.isoformat()}") + "#db-bin"

    def _opened_bin(self, now: datetime) -> BinSchedules | None:
        given = self.argument("bin")
        if not given:
            return None
        start, _, end = given.partition("/")
        span = time_window(name="", since=start, until=end, zone=self.zone.common, now=now)
        return schedules_of_bin(
            self.dynbeat.context,
            start_at=span.since,
            end_at=span.until,
            now=now,
            **self._filter(),
        )


class ForecastFragment(PageHandler):
    """The number of upcoming runs, which the page loads later: a forecast can take a second."""

    tab = "timeline"
    # All requests share one forecast, in a separate thread.
    is_counted = False

    async def get(self) -> None:
        """Render the fragment."""
        calls = self.application.database_calls
        found = await calls.forecast.run(self._forecast, max_age=FORECAST_EVERY)
        await self.render_fragment("forecast.html", found=found, ui=fragments, zone=self.zone)

    def _forecast(self) -> ForecastInfo:
        context = self.dynbeat.context
        now = context.clock.now()
        start = now.replace(second=0, microsecond=0)
        bins = Bins(start, WIDTHS["minute"], FORECAST_MINUTES)
        return forecast(context, bins=bins, per="minute", now=now)

    def window_of(self, minute: datetime) -> str:
        """Return the URL of the timeline around a minute, with its bar open."""
        since, until = minute - _AROUND, minute + _AROUND
        opened = f"{minute.isoformat()}/{(minute + WIDTHS['minute']).isoformat()}"
        return self.link(
            "dynbeat_timeline", since=since.isoformat(), until=until.isoformat(), bin=opened
        )
