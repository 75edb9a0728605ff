"""The page of one schedule, and the charts that it loads later."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from difflib import get_close_matches
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from celery_dynbeat.api import OwnerSchedules, ScheduleInfo
from celery_dynbeat.common.errors import ScheduleNotFoundError
from celery_dynbeat.common.states import State
from celery_dynbeat.flower.base import selection
from celery_dynbeat.flower.base.fragments import local_time
from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.base.paging import PagePlace, paging
from celery_dynbeat.flower.charts.heat_map import heat_map
from celery_dynbeat.flower.charts.line_chart import line_chart
from celery_dynbeat.flower.pages.owner import quiet_hours_of
from celery_dynbeat.flower.pages.schedule_parts import (
    calendar_cells,
    changed_fields,
    failure_dots,
    line_points,
    policies,
)
from celery_dynbeat.flower.pages.schedule_rows import Situation, state_of
from celery_dynbeat.insights.explain.runs import first_line, wait_text
from celery_dynbeat.insights.statistics.calendar import CalendarDay, calendar
from celery_dynbeat.insights.statistics.run_times import SPANS, RunTimes, run_times
from celery_dynbeat.insights.statistics.upcoming import next_fire_times

#: The ranges of the charts of lag and duration: the values of ?range= and their labels.
RANGES = dict(zip(("1h", "24h", "7d", "30d"), SPANS, strict=True))
RANGE_LABELS = {"1h": "1 hour", "24h": "24 hours", "7d": "7 days", "30d": "30 days"}
FIRE_TIMES = 10
CHANGES = 10
#: The number of names of the owner that are compared with a wrong name.
_COMPARED = 1_000


class _OfSchedule(PageHandler):
    """A page of the schedule that ``?owner=&name=`` names."""

    tab = "schedules"
    arguments = frozenset({"owner", "name", "calendar", "range", "size", "after", "back"})

    @property
    def owner(self) -> str:
        """The owner of the URL."""
        return self.argument("owner")

    @property
    def name(self) -> str:
        """The name of the URL."""
        return self.argument("name")

    @property
    def mine(self) -> OwnerSchedules:
        """The calls of the owner."""
        return self.for_owner(self.owner)

    @property
    def range(self) -> str:
        """The time that the charts show, or "" if the URL names no time."""
        given = self.argument("range")
        return given if given in RANGES else ""

    def with_charts(self, route: str, **changes: str | None) -> str:
        """Return a URL of the schedule that keeps the arguments of the charts, with changes."""
        kept = {name: self.argument(name) or None for name in ("calendar", "zone")}
        chosen = {**kept, "range": self.range or None, **changes}
        return self.link(route, owner=self.owner, name=self.name, **chosen)

    def runs_url(self, **query: object) -> str:
        """Return the URL of the runs of the schedule."""
        return self.link("dynbeat_runs", owner=self.owner, name=self.name, **query)


class SchedulePage(_OfSchedule):
    """One schedule: why it ran or did not run, its next runs, its history and its changes."""

    route = "dynbeat_schedule"

    async def get(self) -> None:
        """Render the page, or one for a schedule that does not exist."""
        try:
            info = await self.call(lambda: self.mine.get(self.name))
        except ScheduleNotFoundError:
            await self._render_missing()
            return
        await self._render_schedule(info)

    async def _render_schedule(self, info: ScheduleInfo) -> None:
        place, context, viewer = self.place, self.dynbeat.context, self.zone.viewer
        named: dict[str, Any] = {"owner": self.owner, "name": self.name}
        coming: dict[str, Any] = {"count": FIRE_TIMES, "viewer_zone": viewer}
        history: dict[str, Any] = {"limit": place.size, "after": place.after}
        why, fire_times, runs, changes, holds, quiet_hours = await asyncio.gather(
            self.call(partial(self.schedules.explain, **named)),
            self.call(partial(next_fire_times, context, **named, **coming)),
            self.call(partial(self.mine.runs, self.name, **history)),
            self.call(partial(self.mine.changes, self.name, limit=CHANGES)),
            self.call(self.mine.holds),
            self.call(partial(quiet_hours_of, self.mine)),
        )
        zone = self.zone.of(info.timezone)
        await self.render_page(
            "schedule.html",
            info=info,
            key=selection.encode(info.owner, info.name),
            state=self._state(info, now=why.now),
            why=why,
            now=why.now,
            local=zone,
            viewer=viewer,
            fire_times=fire_times,
            next_fire=next((each.at for each in fire_times if not each.is_skipped), None),
            runs=runs,
            first_line=first_line,
            wait_text=wait_text,
            paging=paging(place, cursor=runs.cursor, here=self.here),
            changes=changes,
            fields_of=partial(changed_fields, hides_arguments=self.hides_arguments),
            policies=policies(info, context.settings, zone),
            holds=holds,
            quiet_hours=quiet_hours,
            own_hold=next((hold for hold in holds if hold.owner is not None), None),
        )

    def _state(self, info: ScheduleInfo, *, now: datetime) -> str:
        situation = Situation(
            now=now,
            overdue_before=now - self.dynbeat.context.settings.dispatch_timeout,
        )
        return str(State(state_of(info, situation)))

    async def _render_missing(self) -> None:
        def read() -> tuple[bool, list[str]]:
            names = [info.name for info in self.mine.list(limit=_COMPARED)]
            similar = get_close_matches(self.name, names, n=3)
            return bool(self.mine.runs(self.name, limit=1).items), similar

        has_history, similar = await self.call(read) if self.name else (False, [])
        self.set_status(404)
        await self.render_page("schedule_missing.html", has_history=has_history, similar=similar)

    @property
    def place(self) -> PagePlace:
        """The position of the page in the history."""
        return PagePlace.of(
            after=self.argument("after"),
            back=self.get_query_arguments("back", strip=False),
            size=self.argument("size"),
        )


class ScheduleCharts(_OfSchedule):
    """The calendar and the charts of one schedule, as a fragment that its page loads later."""

    route = "dynbeat_schedule_charts"

    async def get(self) -> None:
        """Render the fragment."""
        context = self.dynbeat.context
        info = await self.call(lambda: self.mine.get(self.name))
        zone = self.zone.of(info.timezone)
        named: dict[str, Any] = {"owner": self.owner, "name": self.name}
        days, times, now = await asyncio.gather(
            self.call(lambda: calendar(context, zone=zone, **named)),
            self.call(partial(run_times, context, span=RANGES.get(self.range), **named)),
            self.call(context.clock.now),
        )
        shown = await self.call(partial(self._charts, days, times, zone=zone, now=now))
        await self.render_fragment("schedule_charts.html", **shown)

    def _charts(
        self, days: Sequence[CalendarDay], times: RunTimes, *, zone: ZoneInfo, now: datetime
    ) -> dict[str, Any]:
        only_failed = self.argument("calendar") == "failed"
        cells = calendar_cells(days, only_failed=only_failed, runs_url=self.runs_url)
        start, end = times.start_at.astimezone(zone), times.end_at.astimezone(zone)
        length = times.end_at - times.start_at
        shown_range = next(name for name, each in RANGES.items() if each == length)
        charts = {
            which: line_chart(
                list(line_points(times.buckets, which=which, zone=zone)),
                dots=list(failure_dots(times.failures, zone=zone, link=self.link))
                if which == "duration"
                else (),
                start_at=start,
                end_at=end,
                label=f"{which.capitalize()}, {RANGE_LABELS[shown_range]}",
            )
            for which in ("lag", "duration")
        }
        today = now.astimezone(zone).date()
        return {
            "calendar": heat_map(list(cells), today=today, label="Runs per day"),
            "only_failed": only_failed,
            "charts": charts,
            "ranges": RANGE_LABELS,
            "shown_range": shown_range,
            "read_since": local_time(times.read_since, zone) if times.is_cut else None,
        }
