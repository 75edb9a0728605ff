"""The page "Timeline": past runs and future fire times on one axis."""

from datetime import datetime, timedelta
from typing import Any

from celery_dynbeat.api import ForecastInfo
from celery_dynbeat.api.lists.forecast import WIDTHS, Bins, forecast
from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.flower.base import fragments
from celery_dynbeat.flower.base.chips import Filter
from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.charts.histogram import histogram
from celery_dynbeat.flower.charts.legend import timeline_legend
from celery_dynbeat.flower.charts.timeline import timeline as timeline_chart
from celery_dynbeat.flower.pages.time_window import LENGTHS, TimeWindow, time_window
from celery_dynbeat.flower.pages.timeline_marks import MAX_LISTED, Marks, listed
from celery_dynbeat.insights.statistics.bin_schedules import BinSchedules, schedules_of_bin
from celery_dynbeat.insights.statistics.timeline import Timeline, timeline

GROUPS = ("owner", "task", "tag")
#: The length of the forecast, and the seconds until it is made again.
FORECAST_MINUTES, FORECAST_EVERY = 360, 60
_AROUND = timedelta(minutes=30)


class TimelinePage(PageHandler):
    """Past runs and future fire times of the schedules that match, by owner, task or tag."""

    tab = "timeline"
    arguments = frozenset({*GROUPS, "group", "window", "since", "until", "bin"})

    chip_filters = (
        *(Filter(name=name) for name in GROUPS),
        Filter(name="since", label="window", end="until", is_time=True),
        Filter(name="bin", label="open bar", is_time=True),
    )

    async def get(self) -> None:
        """Render the page."""
        error = None
        try:
            values = await self.call(self._read)
        except InvalidScheduleError as invalid:
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
        table = [] if found.is_histogram else listed(list(found.rows))
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
            bins = [marks.bin(each, here=self.here) for each in found.bins]
            label = "Runs over time"
            return histogram(bins, start_at=start, end_at=end, now=now, label=label)
        rows = [marks.row(row, group_by=found.group_by) for row in found.rows]
        label = f"Runs by {found.group_by}"
        return timeline_chart(rows, start_at=start, end_at=end, now=now, label=label)

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
