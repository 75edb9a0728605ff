"""The page "Runs": the history of all owners, with filters and bulk actions."""

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import Any

from celery_dynbeat.api.filters import search_keys, to_texts
from celery_dynbeat.api.reading import count_runs, runs_page
from celery_dynbeat.api.results import BatchInfo, Page, RunInfo
from celery_dynbeat.common.errors import InvalidArgumentError, NotFoundError
from celery_dynbeat.common.filters import RunFilter
from celery_dynbeat.common.infos import BoundedCount
from celery_dynbeat.common.states import Status
from celery_dynbeat.common.text import first_line
from celery_dynbeat.flower.actions import ACTIONS, run_filter
from celery_dynbeat.flower.base.page import ListPage
from celery_dynbeat.insights.explain.runs import wait_text
from celery_dynbeat.insights.history import failures
from celery_dynbeat.store.runs.run_pages import UNSUCCESSFUL

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


#: The quick choices of the page: durations back from now.
SPANS = ("1h", "24h", "7d")
SEARCH = tuple(key.name for key in search_keys(RunFilter))
#: The keys by which groups of errors can be filtered.
_OF_GROUPS = ("owner", "task", "since", "until")
#: The values of the template that are always the same, and that of a page without a list.
_CONSTANTS: Mapping[str, Any] = {
    "runs": None,
    "groups": None,
    "chips": CHIPS,
    "search": SEARCH,
    "spans": SPANS,
    "statuses": Status,
    "max_groups": MAX_GROUPS,
}


class RunsPage(ListPage):
    """Runs, the newest first, or with ``?group=error`` the failed runs by task and error."""

    tab = "runs"
    kind = RunFilter
    template = "runs.html"
    kept = ("status", "since", "until", "size", "zone", "group")

    async def read(self) -> Mapping[str, Any]:
        """Return a page of the list, or the groups of errors."""
        now = await self.call(self.dynbeat.context.clock.now)
        values = await (self._errors(now) if self.is_grouped else self._listing(now))
        return {**_CONSTANTS, "now": now, **values}

    def unread(self, error: InvalidArgumentError) -> Mapping[str, Any]:
        """Answer 400 with the error."""
        del error
        self.set_status(HTTPStatus.BAD_REQUEST)
        return _CONSTANTS

    @property
    def is_grouped(self) -> bool:
        """Whether the page shows the failed runs by error."""
        return self.argument("group") == "error"

    @property
    def errors_url(self) -> str:
        """Return the URL of the failed runs by error, with the filter of the list."""
        given = {key: self.given.get(key) for key in _OF_GROUPS}
        return self.link("dynbeat_runs", **given, group="error")

    def failed_url(self, task: str) -> str:
        """Return the URL of the failed runs of a task, with the filter of the groups."""
        since = self.argument("since") or "24h"
        return self.here(task=task, status=list(UNSUCCESSFUL), since=since, group=None)

    def with_statuses(self, *statuses: str) -> str:
        """Return the URL of the list with other statuses."""
        return self.first_page(status=list(statuses) or None)

    async def _listing(self, now: datetime) -> dict[str, Any]:
        matching = run_filter(self.given, zone=self.zone.common, now=now)
        runs, total, batch = await asyncio.gather(
            self.call(lambda: self._page(matching)),
            self.call(lambda: self._total(matching)),
            self.call(lambda: self._batch(matching)),
        )
        return {
            "runs": runs,
            "total": total,
            "batch": batch,
            "matching": matching,
            "fields": to_texts(matching),
            "actions": [each for each in ACTIONS.values() if each.all_runs is not None],
            "first_line": first_line,
            "wait_text": wait_text,
            "paging": self.paging(runs.cursor),
        }

    async def _errors(self, now: datetime) -> dict[str, Any]:
        given = {key: values for key, values in self.given.items() if key != "status"}
        matching = run_filter(given, zone=self.zone.common, now=now)
        if others := to_texts(matching).keys() - _OF_GROUPS:
            message = f"Groups of errors cannot be filtered by {' and '.join(sorted(others))}."
            raise InvalidArgumentError(message, field="q")
        read = partial(
            failures,
            self.dynbeat.context,
            since=matching.since or now - ERRORS_SINCE,
            until=matching.until,
            owner=matching.owner,
            task=matching.task,
        )
        return {"groups": await self.call(read)}

    def _page(self, matching: RunFilter) -> Page[RunInfo]:
        place, context = self.place, self.dynbeat.context
        return runs_page(context, None, matching=matching, limit=place.size, after=place.after)

    def _batch(self, matching: RunFilter) -> BatchInfo | None:
        if matching.batch_id is None:
            return None
        try:
            return self.calls_of(matching.owner).get_batch(matching.batch_id)
        except NotFoundError:
            return None

    def _total(self, matching: RunFilter) -> BoundedCount:
        return count_runs(self.dynbeat.context, None, matching=matching)
