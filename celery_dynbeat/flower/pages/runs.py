"""The page "Runs": the history of all owners, with filters and bulk actions."""

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

from celery_dynbeat.api import checks
from celery_dynbeat.api.lists import history
from celery_dynbeat.api.results import BatchInfo, BoundedCount, Page, RunInfo
from celery_dynbeat.common.errors import BatchNotFoundError, InvalidScheduleError
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Origin
from celery_dynbeat.flower.base.chips import Filter
from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.base.paging import PagePlace, paging
from celery_dynbeat.flower.base.search_text import SearchError, parse_terms, search_text
from celery_dynbeat.flower.pages.run_filter import KEYS, SPANS, RunFilter, run_filter
from celery_dynbeat.insights.explain.runs import first_line, wait_text
from celery_dynbeat.insights.statistics.failures import failures
from celery_dynbeat.store.runs import run_filters as store_filters
from celery_dynbeat.store.runs.run_filters import UNSUCCESSFUL

#: The time of the runs by error, unless the URL names another, and the groups that are shown.
ERRORS_SINCE = timedelta(hours=24)
MAX_GROUPS = 200
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
    """Runs, the newest first, or with ``?group=error`` the failed runs by task and error."""

    tab = "runs"
    arguments = frozenset(
        {"q", *KEYS, "status", "since", "until", "size", "after", "back", "group"}
    )

    chip_filters = (
        *(Filter(name="status"), Filter(name="owner", dependent="name", can_be_empty=True)),
        *(Filter(name="name"), Filter(name="task"), Filter(name="origin")),
        Filter(name="batch"),
        *(Filter(name="worker"), Filter(name="text")),
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
            values = await (self._errors() if self.is_grouped else self._listing())
        except (SearchError, InvalidScheduleError) as error:
            self.set_status(400)
            values = {
                "runs": None,
                "groups": None,
                "text": text or self.request_search,
                "error": str(error),
            }
        await self.render_page(
            "runs.html",
            chips=CHIPS,
            spans=SPANS,
            statuses=Status,
            origins=Origin,
            max_groups=MAX_GROUPS,
            **values,
        )

    @property
    def request_search(self) -> str:
        """The search box of the arguments as they are, valid or not."""
        return search_text({key: self._argument(key) or None for key in KEYS})

    @property
    def is_grouped(self) -> bool:
        """Whether the page shows the failed runs by error."""
        return self.argument("group") == "error"

    @property
    def errors_url(self) -> str:
        """Return the URL of the failed runs by error, with the filter of the list."""
        given = {key: self._argument(key) for key in ("owner", "task", "since", "until")}
        return self.link("dynbeat_runs", **given, group="error")

    def failed_url(self, task: str) -> str:
        """Return the URL of the failed runs of a task, with the filter of the groups."""
        since = self.argument("since") or "24h"
        return self.here(task=task, status=list(UNSUCCESSFUL), since=since, group=None)

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
        runs, total, batch = await asyncio.gather(
            self.call(lambda: self._page(matching)),
            self.call(lambda: self._total(matching)),
            self.call(lambda: self._batch(matching)),
        )
        return {
            "runs": runs,
            "groups": None,
            "now": now,
            "total": total,
            "batch": batch,
            "matching": matching,
            "text": search_text(matching.search),
            "error": "",
            "first_line": first_line,
            "wait_text": wait_text,
            "paging": paging(self.place, cursor=runs.cursor, here=self.here),
        }

    async def _errors(self) -> dict[str, Any]:
        now = await self.call(self.dynbeat.context.clock.now)
        matching = run_filter(argument=self._argument, statuses=(), zone=self.zone.common, now=now)
        read = partial(
            failures,
            self.dynbeat.context,
            since=matching.since or now - ERRORS_SINCE,
            until=matching.until,
            owner=matching.owner,
            task=matching.task,
        )
        found = await self.call(read)
        text = search_text({"owner": matching.owner, "task": matching.task})
        return {"runs": None, "groups": found, "now": now, "text": text, "error": ""}

    def _page(self, matching: RunFilter) -> Page[RunInfo]:
        place, found = self.place, _stored_filter(matching)
        context = self.dynbeat.context
        return history.page(context, None, matching=found, limit=place.size, after=place.after)

    def _batch(self, matching: RunFilter) -> BatchInfo | None:
        if matching.batch is None:
            return None
        try:
            return self.calls_of(matching.owner).get_batch(matching.batch)
        except BatchNotFoundError:
            return None

    def _total(self, matching: RunFilter) -> BoundedCount:
        return history.count(self.dynbeat.context, None, matching=_stored_filter(matching))


def _stored_filter(matching: RunFilter) -> store_filters.RunFilter:
    """Return the filter as the queries take it. Raises InvalidScheduleError."""
    if matching.owner is not None:
        checks.check_name("owner", matching.owner, empty=True)
    given = matching.arguments(worker=matching.worker, text=matching.text)
    return history.filter_of(owner=matching.owner, **given)
