"""The page of one schedule, and the charts that it loads later."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from celery_dynbeat.api import OwnerSchedules
from celery_dynbeat.api.fields import FIELDS
from celery_dynbeat.api.results import ChangeInfo, ScheduleInfo, value_text
from celery_dynbeat.common.errors import InvalidArgumentError, NotFoundError
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.text import first_line, format_duration
from celery_dynbeat.flower.actions import encode
from celery_dynbeat.flower.base.fragments import as_json, local_time
from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.charts.heat_map import heat_map
from celery_dynbeat.flower.charts.lines import LineDot, LinePoint, line_chart
from celery_dynbeat.flower.pages.schedules import state_of
from celery_dynbeat.insights.charts import (
    SPANS,
    CalendarDay,
    FailureDot,
    RunTimes,
    TimesBucket,
    calendar,
    run_times,
)
from celery_dynbeat.insights.explain.runs import wait_text

#: Gives the URL of a route with arguments.
Link = Callable[..., str]

#: The groups of fields that the page shows as policies.
_GROUPS = ("policy", "report", "limit")
_ARGUMENTS = frozenset({"args", "kwargs"})
HIDDEN = "(hidden)"
#: The ranges of the charts of lag and duration: the values of ?range= and their labels.
RANGES = dict(zip(("1h", "24h", "7d", "30d"), SPANS, strict=True))
RANGE_LABELS = {"1h": "1 hour", "24h": "24 hours", "7d": "7 days", "30d": "30 days"}
FIRE_TIMES = 10
CHANGES = 10
#: The number of names of the owner that are compared with a wrong name.
_COMPARED = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy, and whether the schedule sets it itself."""

    name: str
    value: str
    is_default: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedField:
    """A field before and after a change, or None if the schedule did not exist."""

    name: str
    before: str | None
    after: str | None


def quiet_hours_of(mine: OwnerSchedules) -> Sequence[str]:
    """Return texts about the quiet hours of the owner, or the text of the error."""
    try:
        found = mine.quiet_hours()
        zone = mine.timezone()
    except InvalidArgumentError as error:
        # SQL by hand. The other parts of the page can be shown.
        return [str(error)]
    texts = []
    for each in found:
        whose = " (everybody)" if each.owner is None else ""
        texts.append(f"{each} on the clock of {zone}{whose}")
    return texts


def policies(info: ScheduleInfo, settings: Settings, zone: ZoneInfo) -> Sequence[Policy]:
    """Return the policies of the schedule, then its other fields of _GROUPS that are set."""
    found = []
    for field in (each for group in _GROUPS for each in FIELDS.values() if each.group == group):
        own = field.value_in(info)
        if own is None and field.group != "policy":
            continue
        value = getattr(settings, field.name, None) if own is None else own
        text = _text(field.type.shown(value), zone)
        found.append(Policy(name=field.name, value=text, is_default=own is None))
    return found


def _text(value: object, zone: ZoneInfo) -> str:
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, datetime):
        return local_time(value, zone)
    return "none" if value is None else str(value)


def changed_fields(change: ChangeInfo, *, hides_arguments: bool) -> Sequence[ChangedField]:
    """Return the fields of a change in the order of their names."""
    before, after = change.before or {}, change.after or {}
    return [
        ChangedField(
            name=name,
            before=_field(before, name, hides_arguments=hides_arguments),
            after=_field(after, name, hides_arguments=hides_arguments),
        )
        for name in sorted({*before, *after})
    ]


def _field(values: Mapping[str, Any], name: str, *, hides_arguments: bool) -> str | None:
    if name not in values:
        return None
    if hides_arguments and name in _ARGUMENTS:
        return HIDDEN
    value = values[name]
    if hides_arguments and name == "options" and isinstance(value, Mapping) and "headers" in value:
        value = {**value, "headers": HIDDEN}
    if name == "trigger":
        return value_text(value, name)
    return value if isinstance(value, str) else as_json(value)


def day_title(day: CalendarDay) -> str:
    """Return the numbers of a day of the calendar."""
    parts = [f"{day.total} runs" if day.total.count else "no runs"]
    if day.failed:
        parts.append(f"{day.failed:,} failed")
    if day.skipped:
        parts.append(f"{day.skipped:,} skipped")
    if day.planned:
        parts.append(f"{day.planned:,}{'' if day.planned_exact else ' or more'} planned")
    return f"{day.day:%a} {day.day.day} {day.day:%b %Y}: {', '.join(parts)}"


def line_points(
    buckets: Sequence[TimesBucket], *, which: str, zone: ZoneInfo
) -> Iterator[LinePoint]:
    """Yield the points of a line: ``which`` is "lag" or "duration".

    Times without runs are left out. Those of a daily schedule would leave no line.
    """
    for each in buckets:
        p50, most = getattr(each, f"{which}_p50"), getattr(each, f"{which}_max")
        if p50 is None or most is None:
            continue
        yield LinePoint(
            start_at=each.start_at.astimezone(zone),
            end_at=each.end_at.astimezone(zone),
            p50=p50.total_seconds(),
            max=most.total_seconds(),
            title=(
                f"{local_time(each.start_at, zone)}: {which} {format_duration(p50)}, at most"
                f" {format_duration(most)}, {each.count} runs"
            ),
        )


def failure_dots(
    failures: Sequence[FailureDot], *, zone: ZoneInfo, link: Link
) -> Iterator[LineDot]:
    """Yield the failures of a line chart."""
    for each in failures:
        yield LineDot(
            at=each.at.astimezone(zone),
            seconds=None if each.duration is None else each.duration.total_seconds(),
            title=f"{each.status} {local_time(each.at, zone)}",
            href=link("dynbeat_run", each.run_id),
        )


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

    def day_url(self, day: CalendarDay) -> str | None:
        """Return the URL of the runs of a day, or None if it has none."""
        since, until = day.start_at.isoformat(), day.end_at.isoformat()
        return self.runs_url(since=since, until=until) if day.total.count else None


class SchedulePage(_OfSchedule):
    """One schedule: why it ran or did not run, its next runs, its history and its changes."""

    route = "dynbeat_schedule"

    async def get(self) -> None:
        """Render the page, or one for a schedule that does not exist."""
        try:
            info = await self.call(lambda: self.mine.get(self.name))
        except NotFoundError:
            await self._render_missing()
            return
        await self._render_schedule(info)

    async def _render_schedule(self, info: ScheduleInfo) -> None:
        place, context, viewer = self.place, self.dynbeat.context, self.zone.viewer
        named: dict[str, Any] = {"owner": self.owner, "name": self.name}
        history: dict[str, Any] = {"limit": place.size, "after": place.after}
        why, runs, changes, holds, quiet_hours = await asyncio.gather(
            self.call(partial(self.schedules.explain, **named, count=FIRE_TIMES)),
            self.call(partial(self.mine.runs, self.name, **history)),
            self.call(partial(self.mine.changes, self.name, limit=CHANGES)),
            self.call(self.mine.holds),
            self.call(partial(quiet_hours_of, self.mine)),
        )
        zone = self.zone.of(info.timezone)
        await self.render_page(
            "schedule.html",
            info=info,
            key=encode(info.owner, info.name),
            state=str(
                state_of(info, now=why.now, dispatch_timeout=context.settings.dispatch_timeout)
            ),
            why=why,
            now=why.now,
            local=zone,
            viewer=viewer,
            fire_times=why.next,
            next_fire=next((each.fire_at for each in why.next if not each.is_skipped), None),
            runs=runs,
            first_line=first_line,
            wait_text=wait_text,
            paging=self.paging(runs.cursor),
            changes=changes,
            fields_of=partial(changed_fields, hides_arguments=self.hides_arguments),
            policies=policies(info, context.settings, zone),
            holds=holds,
            quiet_hours=quiet_hours,
            own_hold=next((hold for hold in holds if hold.owner is not None), None),
        )

    async def _render_missing(self) -> None:
        def read() -> tuple[bool, list[str]]:
            names = [info.name for info in self.mine.list(limit=_COMPARED)]
            similar = get_close_matches(self.name, names, n=3)
            return bool(self.mine.runs(self.name, limit=1).items), similar

        has_history, similar = await self.call(read) if self.name else (False, [])
        self.set_status(404)
        await self.render_page("schedule_missing.html", has_history=has_history, similar=similar)


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
            "calendar": heat_map(
                days,
                title=day_title,
                href=self.day_url,
                today=today,
                only_failed=only_failed,
                label="Runs per day",
            ),
            "only_failed": only_failed,
            "charts": charts,
            "ranges": RANGE_LABELS,
            "shown_range": shown_range,
            "read_since": local_time(times.read_since, zone) if times.is_cut else None,
        }
