"""The page "Runs": the history of all owners, with filters and bulk actions."""

import asyncio
from typing import Any

from celery_dynbeat.api.results import BoundedCount, Page, RunInfo
from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Origin
from celery_dynbeat.flower.base.chips import Filter
from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.base.paging import PagePlace, paging
from celery_dynbeat.flower.base.search_text import SearchError, parse_terms, search_text
from celery_dynbeat.flower.pages.run_filter import KEYS, SPANS, RunFilter, run_filter
from celery_dynbeat.insights.explain.runs import first_line

#: The chips and their statuses.
CHIPS: dict[str, tuple[str, ...]] = {
    "All": (),
    "Running": ("running", "retrying"),
    "Waiting": ("pending", "sent"),
    "Succeeded": ("succeeded",),
    "Failed": ("failed", "lost"),
    "Skipped": ("skipped",),
    "Stopped": ("revoked", "expired"),
}


class RunsPage(PageHandler):
    """Runs, the newest first."""

    tab = "runs"
    arguments = frozenset({"q", *KEYS, "status", "since", "until", "size", "after", "back"})

    chip_filters = (
        *(Filter(name="status"), Filter(name="owner", dependent="name", can_be_empty=True)),
        *(Filter(name="name"), Filter(name="task"), Filter(name="origin")),
        *(Filter(name="since", is_time=True), Filter(name="until", is_time=True)),
    )

    async def get(self) -> None:
        """Render a page of the list. A text of the search box becomes arguments of the URL."""
        text = self.argument("q")
        try:
            if "q" in self.request.query_arguments:
                found = parse_terms(text, keys=KEYS, default="name")
                empty = dict.fromkeys(KEYS)
                self.redirect(self.here(q=None, after=None, back=None, **{**empty, **found}))
                return
            values = await self._listing()
        except (SearchError, InvalidScheduleError) as error:
            self.set_status(400)
            values = {"runs": None, "text": text or self.request_search, "error": str(error)}
        await self.render_page(
            "runs.html", chips=CHIPS, spans=SPANS, statuses=Status, origins=Origin, **values
        )

    @property
    def request_search(self) -> str:
        """The search box of the arguments as they are, valid or not."""
        return search_text({key: self._argument(key) or None for key in KEYS})

    @property
    def errors_url(self) -> str:
        """Return the URL of the failed runs by error, with the filter of the list."""
        known = ("owner", "task", "since", "until")
        return self.link("dynbeat_errors", **{key: self._argument(key) for key in known})

    def with_statuses(self, *statuses: str) -> str:
        """Return the URL of the list with other statuses."""
        return self.here(status=list(statuses) or None, after=None, back=None)

    def _argument(self, name: str) -> str | None:
        return self.argument(name) if name in self.request.query_arguments else None

    @property
    def place(self) -> PagePlace:
        """The position of this page in the list."""
        return PagePlace.of(
            after=self.argument("after"),
            back=self.get_query_arguments("back", strip=False),
            size=self.argument("size"),
        )

    async def _listing(self) -> dict[str, Any]:
        now = await self.call(self.dynbeat.context.clock.now)
        matching = run_filter(
            argument=self._argument,
            statuses=self.get_query_arguments("status"),
            zone=self.zone.common,
            now=now,
        )
        runs, total = await asyncio.gather(
            self.call(lambda: self._page(matching)), self.call(lambda: self._total(matching))
        )
        return {
            "runs": runs,
            "now": now,
            "total": total,
            "matching": matching,
            "text": search_text(matching.search),
            "error": "",
            "first_line": first_line,
            "paging": paging(self.place, cursor=runs.cursor, here=self.here),
        }

    def _page(self, matching: RunFilter) -> Page[RunInfo]:
        place = self.place
        arguments = matching.arguments(limit=place.size, after=place.after)
        return self.calls_of(matching.owner).runs(**arguments)

    def _total(self, matching: RunFilter) -> BoundedCount:
        return self.calls_of(matching.owner).count_runs(**matching.arguments())
