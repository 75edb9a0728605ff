"""The marks in the charts of the timeline. PURE: it converts values of the statistics to marks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from celery_dynbeat.common.text import escape, format_distance, format_duration
from celery_dynbeat.flower.base.fragments import local_time
from celery_dynbeat.flower.charts.histogram import HistogramBin
from celery_dynbeat.flower.charts.timeline import TimelineBar, TimelineRow, TimelineTick
from celery_dynbeat.insights.statistics.histogram import Bin
from celery_dynbeat.insights.statistics.timeline_rows import FutureRun, PastRun
from celery_dynbeat.insights.statistics.timeline_rows import TimelineRow as Row

#: Gives the URL of a route with arguments.
Link = Callable[..., str]
#: Rows of the table that shows the same as the chart.
MAX_LISTED = 200


@dataclass(frozen=True, slots=True)
class Marks:
    """Makes marks for a page: its zone, its time, and its URLs."""

    zone: ZoneInfo
    now: datetime
    link: Link

    def row(self, row: Row, *, group_by: str) -> TimelineRow:
        """Return the row of a chart. Its label leads to the schedules behind it."""
        return TimelineRow(
            label=escape(row.label) or _UNNAMED[group_by],
            href=self.link("dynbeat_schedules", **{group_by: row.label}),
            bars=[self._bar(run) for run in row.bars],
            ticks=[self._tick(run) for run in row.ticks],
        )

    def bin(self, each: Bin, *, here: Callable[..., str]) -> HistogramBin:
        """Return a bar of the histogram. Its link opens the schedules behind it."""
        more = " or more" if each.more else ""
        title = (
            f"{self._time(each.start_at)} to {self._time(each.end_at)}: {each.past:,} ran"
            f" ({each.failed:,} failed), {each.planned:,} planned{more}"
        )
        return HistogramBin(
            start_at=each.start_at.astimezone(self.zone),
            end_at=each.end_at.astimezone(self.zone),
            past=each.past,
            failed=each.failed,
            planned=each.planned,
            title=title,
            href=here(bin=f"{each.start_at.isoformat()}/{each.end_at.isoformat()}") + "#db-bin",
        )

    def _bar(self, run: PastRun) -> TimelineBar:
        start = run.started_at or run.scheduled_for
        took = ""
        if run.started_at is not None and run.finished_at is not None:
            took = f", took {format_duration(run.finished_at - run.started_at)}"
        title = (
            f"{escape(run.name)}: {run.status}, {self._time(run.scheduled_for)}"
            f" ({format_distance(run.scheduled_for, now=self.now)}){took}"
        )
        # A run that never started has no end on the axis either.
        end = (run.finished_at or None) if run.started_at is not None else start
        return TimelineBar(
            start_at=start.astimezone(self.zone),
            end_at=None if end is None else end.astimezone(self.zone),
            status=run.status,
            title=title,
            href=self.link("dynbeat_run", run.id),
        )

    def _tick(self, run: FutureRun) -> TimelineTick:
        distance = format_distance(run.at, now=self.now)
        return TimelineTick(
            at=run.at.astimezone(self.zone),
            title=f"{escape(run.name)}: {self._time(run.at)} ({distance})",
            href=self.link("dynbeat_schedule", owner=run.owner, name=run.name),
        )

    def _time(self, at: datetime) -> str:
        return local_time(at, self.zone)


#: The labels of rows without a name.
_UNNAMED = {"owner": "(application)", "task": "(no task)", "tag": "(no tag)"}


def listed(rows: list[Row]) -> list[tuple[datetime, PastRun | FutureRun]]:
    """Return the entries of the table, ordered by time, at most MAX_LISTED."""
    return sorted(_instants(rows), key=lambda pair: (pair[0], pair[1].owner, pair[1].name))[
        :MAX_LISTED
    ]


def _instants(rows: list[Row]) -> Iterator[tuple[datetime, PastRun | FutureRun]]:
    for row in rows:
        yield from ((run.scheduled_for, run) for run in row.bars)
        yield from ((run.at, run) for run in row.ticks)
