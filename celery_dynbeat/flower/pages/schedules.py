"""The page "Schedules": a list with filters, an order, and actions on selected schedules.

The pages of an owner and of a calendar show the same rows.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import takewhile
from typing import Any
from zoneinfo import ZoneInfo

from celery_dynbeat.api.filters import from_texts, search_keys
from celery_dynbeat.api.reading import count_schedules, schedule_filter, schedules_page
from celery_dynbeat.api.results import Page, ScheduleInfo
from celery_dynbeat.common.errors import InvalidArgumentError
from celery_dynbeat.common.filters import ScheduleFilter
from celery_dynbeat.common.infos import BoundedCount
from celery_dynbeat.common.run_ids import created_at
from celery_dynbeat.common.states import TIMED, UNFINISHED, State, Status, was_started
from celery_dynbeat.common.text import cut, escape, format_duration
from celery_dynbeat.flower.actions import ACTIONS, SelectedSchedules, encode
from celery_dynbeat.flower.base.fragments import local_time
from celery_dynbeat.flower.base.page import ListPage, PageHandler
from celery_dynbeat.flower.charts.run_strip import run_strip
from celery_dynbeat.insights.history import RecentRun, recent_runs
from celery_dynbeat.insights.lists import state_counts

#: Runs of a strip.
RUNS = 30
_TEXT_LENGTH = 100
_FAILURES = frozenset({Status.FAILED, Status.LOST})
#: Such a run says nothing about the task, or that its task had nothing to do (SkipRun).
_NO_RESULT = frozenset({Status.SKIPPED, Status.REVOKED, Status.EXPIRED})
_WORKING = frozenset({State.ACTIVE, State.FAILING})
#: The chips in their order. "" is any state.
STATES = (
    *("", State.ACTIVE, State.PAUSED, State.HELD, State.OVERDUE),
    *(State.FAILING, State.QUARANTINED, State.FINISHED),
)
BY_NAME, BY_NEXT_RUN = "name", "next_run_at"
#: The label, order and class of each column.
COLUMNS = (
    ("Name", BY_NAME, ""),
    ("Owner", "", "db-wide"),
    ("Rule", "", "db-wide"),
    ("Last 30 runs", "", "db-wide"),
    ("Last", "", ""),
    ("Next", BY_NEXT_RUN, ""),
    ("State", "", "db-wide"),
)
#: The keys of the search box, and the fields whose errors it shows.
SEARCH = frozenset(key.name for key in search_keys(ScheduleFilter))
_SEARCHED = frozenset({"q", *(key.of_filter for key in search_keys(ScheduleFilter))})


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """The newest run.

    A skipped fire time is not a run, but a run that its task skipped is a run.
    """

    at: datetime
    status: str
    #: The failed and lost runs since the last success, among the runs of the strip.
    failures: str
    #: The first line of the error of the last ended run, or None after a success.
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """A schedule and what its row shows of it."""

    info: ScheduleInfo
    rule: str
    #: The text of the rule.
    text: str
    state: str
    #: Whether a hold delays a due run.
    waits: bool
    #: SVG.
    strip: str
    last: LastRun | None
    zone: ZoneInfo
    #: The value of the check box.
    key: str


def schedule_row(
    info: ScheduleInfo,
    runs: Sequence[RecentRun],
    *,
    now: datetime,
    dispatch_timeout: timedelta,
    zone: ZoneInfo,
    link: Callable[[str], str],
) -> ScheduleRow:
    """Return the row of a schedule. ``runs`` are its last ones, the oldest first.

    ``link`` returns the URL of the page of a run.
    """
    state = state_of(info, now=now, dispatch_timeout=dispatch_timeout)
    is_due = info.next_run_at is None or info.next_run_at <= now
    label = f"Last {len(runs)} runs of {escape(info.name)}" if runs else "No runs"
    return ScheduleRow(
        info=info,
        rule="Damaged rule" if info.trigger is None else info.trigger.describe(str(zone)),
        text=cut(info.rule or "", _TEXT_LENGTH),
        state=state,
        waits=state == State.HELD and is_due,
        strip=run_strip(
            runs,
            title=partial(_title, zone=zone),
            href=lambda run: link(run.id),
            slots=RUNS,
            label=label,
        ),
        last=last_run(runs),
        zone=zone,
        key=encode(info.owner, info.name),
    )


def state_of(info: ScheduleInfo, *, now: datetime, dispatch_timeout: timedelta) -> str:
    """Return the state that the chip shows: also overdue, which depends on the time."""
    if info.state not in _WORKING:
        return info.state
    if info.next_run_at is not None and info.next_run_at < now - dispatch_timeout:
        return State.OVERDUE
    return info.state


def last_run(runs: Sequence[RecentRun]) -> LastRun | None:
    """Return the newest run, or None if there are only skipped fire times."""
    newest = next((run for run in reversed(runs) if was_started(run.status, run.attempt)), None)
    if newest is None:
        return None
    ignored = {*_NO_RESULT, *UNFINISHED}
    ended = [run for run in reversed(runs) if run.status not in ignored]
    failed = list(takewhile(lambda run: run.status in _FAILURES, ended))
    error = next((run.error.partition("\n")[0] for run in failed[:1] if run.error), None)
    is_all = len(failed) == len(ended) and len(runs) == RUNS
    return LastRun(
        at=created_at(newest.id),
        status=newest.status,
        # One failure is in the status.
        failures="" if len(failed) < 2 else f"x{len(failed)}{'+' if is_all else ''}",  # noqa: PLR2004
        error=error,
    )


def _title(run: RecentRun, *, zone: ZoneInfo) -> str:
    times: Mapping[str, timedelta | None] = {
        "lag": run.lag,
        "queued": run.queue_time,
        "duration": run.duration,
    }
    parts = [local_time(run.fire_at, zone), run.status]
    parts += [f"{name} {format_duration(value)}" for name, value in times.items() if value]
    if run.fire_count > 1:
        parts.append(f"represents {run.fire_count} fire times")
    if run.error:
        parts.append(escape(run.error.partition("\n")[0]))
    return ", ".join(parts)


def schedule_rows(
    page: PageHandler, found: Page[ScheduleInfo], *, now: datetime
) -> Sequence[ScheduleRow]:
    """Return the rows that ``page`` shows of the schedules. Reads their runs."""
    context = page.dynbeat.context
    runs = recent_runs(context, schedule_ids=[info.id for info in found], limit=RUNS)
    return [
        schedule_row(
            info,
            runs[info.id],
            now=now,
            dispatch_timeout=context.settings.dispatch_timeout,
            zone=page.zone.of(info.timezone),
            link=partial(page.link, "dynbeat_run"),
        )
        for info in found
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A page of the list."""

    now: datetime
    rows: Sequence[ScheduleRow]
    cursor: str | None
    total: BoundedCount


class ScheduleCounts(PageHandler):
    """The numbers of the chips above the list, as JSON. They take longer than the list."""

    tab = "schedules"
    arguments = SEARCH

    async def get(self) -> None:
        """Answer with the number for each state, and with the key "" for any state."""
        matching = from_texts(ScheduleFilter, self.given)
        counts = await self.call(lambda: state_counts(self.dynbeat.context, matching))
        self.finish({state: str(count) for state, count in counts.items()})


class SchedulesPage(ListPage):
    """The list of schedules. ``?owner=`` is the application itself."""

    tab = "schedules"
    kind = ScheduleFilter
    template = "schedules.html"
    kept = ("state", "order", "size", "zone")

    async def read(self) -> Mapping[str, Any]:
        """Return the rows and the number of all."""
        matching = from_texts(ScheduleFilter, self.given)
        total, (page, now, rows) = await asyncio.gather(
            self.call(lambda: self._total(matching)), self.call(lambda: self._page(matching))
        )
        listing = Listing(now=now, rows=rows, cursor=page.cursor, total=total)
        return self._values(listing)

    def unread(self, error: InvalidArgumentError) -> Mapping[str, Any]:
        """Raise an error of what the search box does not have."""
        if error.field not in _SEARCHED:
            raise error
        return self._values(None)

    def _values(self, listing: Listing | None) -> Mapping[str, Any]:
        return {
            "listing": listing,
            "states": STATES,
            "columns": COLUMNS,
            "actions": [each for each in ACTIONS.values() if each.handler is SelectedSchedules],
            "paging": self.paging(None if listing is None else listing.cursor),
        }

    @property
    def state(self) -> str:
        """The state by which the list is filtered, "" for any."""
        return self.argument("state")

    @property
    def order(self) -> str:
        """The order of the list."""
        default = BY_NEXT_RUN if self.state == State.OVERDUE else BY_NAME
        return self.argument("order") or default

    def with_state(self, state: str) -> str:
        """Return the URL of the list with another state."""
        has_order = not state or state in TIMED
        order = self.argument("order") if has_order else ""
        return self.first_page(state=state or None, order=order or None)

    def with_order(self, order: str) -> str | None:
        """Return the URL of the list in another order, or None if it has no such order."""
        if order == BY_NEXT_RUN and self.state and self.state not in TIMED:
            return None
        return self.first_page(order=order)

    def schedule_url(self, info: ScheduleInfo) -> str:
        """Return the URL of the page of a schedule."""
        return self.link("dynbeat_schedule", owner=info.owner, name=info.name)

    @property
    def counts_url(self) -> str:
        """The URL from which the script gets the numbers of the chips."""
        given = {name: values for name, values in self.given.items() if name in SEARCH}
        return self.link("dynbeat_schedule_counts", **given)

    def _total(self, matching: ScheduleFilter) -> BoundedCount:
        if matching.state is None and self.order == BY_NEXT_RUN:
            # In the order of the next run, only schedules with one are in the list.
            matching = replace(matching, state=State.ACTIVE)
        context = self.dynbeat.context
        return count_schedules(context, None, matching=schedule_filter(context, matching))

    def _page(
        self, matching: ScheduleFilter
    ) -> tuple[Page[ScheduleInfo], datetime, Sequence[ScheduleRow]]:
        context, place = self.dynbeat.context, self.place
        page = schedules_page(
            context,
            None,
            matching=schedule_filter(context, matching),
            order=self.order,
            limit=place.size,
            after=place.after,
        )
        now = context.clock.now()
        return page, now, schedule_rows(self, page, now=now)
