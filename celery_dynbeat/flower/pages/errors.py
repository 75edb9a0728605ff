"""The page "Errors": the failed runs of a time by task and error."""

from functools import partial
from typing import Any

from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.flower.base.chips import Filter
from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.base.search_text import SearchError, parse_terms, search_text
from celery_dynbeat.flower.pages.run_filter import SPANS, RunFilter, run_filter
from celery_dynbeat.insights.statistics.failures import MAX_RUNS, failures
from celery_dynbeat.store.runs.run_filters import UNSUCCESSFUL

DEFAULT_SPAN = "24h"
#: Keys of the search box.
KEYS = ("task", "owner")
#: Groups that the page shows.
MAX_GROUPS = 200


class ErrorsPage(PageHandler):
    """Failed runs by task and error, the most frequent first.

    ``?group=`` shows the runs of one group.
    """

    tab = "runs"
    route = "dynbeat_errors"
    arguments = frozenset({"q", *KEYS, "since", "until", "group"})
    chip_filters = (Filter(name="task"), Filter(name="owner", can_be_empty=True))

    async def get(self) -> None:
        """Render the page. A text of the search box becomes arguments of the URL."""
        text = self.argument("q")
        try:
            if "q" in self.request.query_arguments:
                found = parse_terms(text, keys=KEYS, default="task")
                self.redirect(self.here(q=None, group=None, **{**dict.fromkeys(KEYS), **found}))
                return
            values = await self._found()
        except (SearchError, InvalidScheduleError) as error:
            self.set_status(400)
            values = {"found": None, "text": text, "error": str(error)}
        await self.render_page(
            "errors.html", spans=SPANS, max_groups=MAX_GROUPS, max_runs=MAX_RUNS, **values
        )

    @property
    def span(self) -> str:
        """The time that the URL names, back from now."""
        return self.argument("since") or DEFAULT_SPAN

    def runs_url(self, *, task: str) -> str:
        """Return the URL of the failed runs of a task, with the filter of this page."""
        given = {key: self._argument(key) for key in ("owner", "until")}
        status = list(UNSUCCESSFUL)
        return self.link("dynbeat_runs", task=task, status=status, since=self.span, **given)

    def _argument(self, name: str) -> str | None:
        given = self.argument(name) if name in self.request.query_arguments else None
        return self.span if name == "since" else given

    async def _found(self) -> dict[str, Any]:
        now = await self.call(self.dynbeat.context.clock.now)
        # Other arguments of the page "Runs" do not apply here.
        known = self.arguments - {"q", "group"}
        matching: RunFilter = run_filter(
            argument=lambda name: self._argument(name) if name in known else None,
            statuses=(),
            zone=self.zone.common,
            now=now,
        )
        group = self.argument("group")
        read = partial(
            failures,
            self.dynbeat.context,
            since=matching.since or now,
            until=matching.until,
            owner=matching.owner,
            task=matching.task,
            group=group,
        )
        found = await self.call(read)
        shown = {"owner": matching.owner, "task": matching.task}
        return {
            "found": found,
            "chosen": next((each for each in found.groups if each.key == group), None),
            "now": now,
            "text": search_text(shown),
            "error": "",
        }
