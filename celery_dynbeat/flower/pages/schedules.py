"""The page "Schedules": a list with filters, an order, and actions on selected schedules."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from celery_dynbeat.api import BoundedCount, Page, ScheduleInfo
from celery_dynbeat.api.lists import queries
from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.states import TIMED, State
from celery_dynbeat.flower.base.chips import Filter
from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.base.paging import PagePlace, paging
from celery_dynbeat.flower.base.search_text import SearchError
from celery_dynbeat.flower.pages.schedule_filter import ScheduleFilterHandler
from celery_dynbeat.flower.pages.schedule_rows import RUNS, ScheduleRow, Situation, schedule_row
from celery_dynbeat.flower.pages.schedule_search import ScheduleSearch
from celery_dynbeat.insights.statistics.recent_runs import recent_runs

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
#: Route and label of what can be done with the selected schedules.
ACTIONS = (("pause", "Pause"), ("resume", "Resume"), ("run_now", "Run now"), ("delete", "Delete"))
#: The arguments of a list whose errors the search box shows.
_SEARCHED = frozenset({"owner", "owner_prefix", "task", "tag", "name_prefix", "text"})


def schedule_rows(
    page: PageHandler, found: Page[ScheduleInfo], *, now: datetime
) -> Sequence[ScheduleRow]:
    """Return the rows that ``page`` shows of the schedules. Reads their runs."""
    context = page.dynbeat.context
    runs = recent_runs(context, schedule_ids=[info.id for info in found], limit=RUNS)
    situation = Situation(
        now=now,
        overdue_before=now - context.settings.dispatch_timeout,
    )
    return [
        schedule_row(
            info,
            runs[info.id],
            situation=situation,
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


class SchedulesPage(ScheduleFilterHandler):
    """The list of schedules."""

    arguments = frozenset(
        {
            *("q", "owner", "owner_prefix", "task", "tag", "name", "text"),
            *("state", "order", "size", "after", "back"),
        }
    )

    chip_filters = (
        *(Filter(name="state"), Filter(name="owner", can_be_empty=True)),
        *(Filter(name="owner_prefix", label="owner prefix"), Filter(name="task")),
        *(Filter(name="tag"), Filter(name="name"), Filter(name="text")),
    )

    async def get(self) -> None:
        """Render a page of the list. A text of the search box becomes arguments of the URL."""
        text = self.argument("q")
        try:
            if "q" in self.request.query_arguments:
                found = ScheduleSearch.parse(text).arguments()
                self.redirect(self.with_filter(**found))
                return
            listing = await self._listing()
        except SearchError as error:
            await self._render_list(None, text=text, error=str(error))
        except InvalidScheduleError as error:
            if error.field not in _SEARCHED:
                raise
            await self._render_list(None, text=str(self.search), error=str(error))
        else:
            await self._render_list(listing, text=str(self.search))

    @property
    def order(self) -> str:
        """The order of the list."""
        default = BY_NEXT_RUN if self.state == State.OVERDUE else BY_NAME
        return self.argument("order") or default

    @property
    def place(self) -> PagePlace:
        """The position of this page in the list."""
        return PagePlace.of(
            after=self.argument("after"),
            back=self.get_query_arguments("back", strip=False),
            size=self.argument("size"),
        )

    def with_state(self, state: str) -> str:
        """Return the URL of the list with another state."""
        has_order = not state or state in TIMED
        order = self.argument("order") if has_order else ""
        return self.with_filter(state=state or None, order=order or None)

    def with_order(self, order: str) -> str | None:
        """Return the URL of the list in another order, or None if it has no such order."""
        if order == BY_NEXT_RUN and self.state and self.state not in TIMED:
            return None
        return self.with_filter(order=order)

    def with_filter(self, **changes: str | None) -> str:
        """Return the URL of the first page of the list with other arguments."""
        return self.here(q=None, after=None, back=None, **changes)

    def schedule_url(self, info: ScheduleInfo) -> str:
        """Return the URL of the page of a schedule."""
        return self.link("dynbeat_schedule", owner=info.owner, name=info.name)

    @property
    def counts_url(self) -> str:
        """The URL from which the script gets the numbers of the chips."""
        return self.link("dynbeat_schedule_counts", **self.search.arguments())

    async def _listing(self) -> Listing:
        total, (page, now, rows) = await asyncio.gather(
            self.call(self._total), self.call(self._page)
        )
        return Listing(now=now, rows=rows, cursor=page.cursor, total=total)

    def _total(self) -> BoundedCount:
        # In the order of the next run, only schedules with one are in the list.
        state = self.state or (State.ACTIVE if self.order == BY_NEXT_RUN else None)
        context = self.dynbeat.context
        matching = queries.filter_of(context, state=state, **self.filters)
        return queries.count(context, None, matching=matching)

    def _page(self) -> tuple[Page[ScheduleInfo], datetime, Sequence[ScheduleRow]]:
        context, place = self.dynbeat.context, self.place
        page = queries.page(
            context,
            None,
            matching=queries.filter_of(context, state=self.state or None, **self.filters),
            order=self.order,
            limit=place.size,
            after=place.after,
        )
        now = context.clock.now()
        rows = schedule_rows(self, page, now=now)
        return page, now, rows

    async def _render_list(self, listing: Listing | None, *, text: str, error: str = "") -> None:
        place = self.place
        cursor = None if listing is None else listing.cursor
        await self.render_page(
            "schedules.html",
            listing=listing,
            search_text=text,
            error=error,
            states=STATES,
            columns=COLUMNS,
            actions=ACTIONS,
            place=place,
            paging=paging(place, cursor=cursor, here=self.here),
        )
