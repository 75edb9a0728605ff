"""The filter of schedules in the URL: ``?owner=&task=&tag=&name=&state=``."""

from typing import TypedDict

from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.pages.schedule_search import ScheduleSearch
from celery_dynbeat.insights.statistics.state_counts import state_counts


class Filters(TypedDict):
    """The arguments of ``list``, ``count`` and ``state_counts`` except the state."""

    owner: str | None
    task: str | None
    tag: str | None
    name_prefix: str | None


class ScheduleFilterHandler(PageHandler):
    """A handler whose URL has the filter of schedules."""

    tab = "schedules"
    arguments = frozenset({"owner", "task", "tag", "name"})

    @property
    def search(self) -> ScheduleSearch:
        """The filter of the schedules. ``?owner=`` is the application itself."""
        has_owner = "owner" in self.request.query_arguments
        return ScheduleSearch(
            owner=self.argument("owner") if has_owner else None,
            task=self.argument("task") or None,
            tag=self.argument("tag") or None,
            name=self.argument("name") or None,
        )

    @property
    def state(self) -> str:
        """The state by which the list is filtered, "" for any."""
        return self.argument("state")

    @property
    def filters(self) -> Filters:
        """The search as arguments of the client's calls."""
        search = self.search
        return Filters(
            owner=search.owner, task=search.task, tag=search.tag, name_prefix=search.name
        )


class ScheduleCounts(ScheduleFilterHandler):
    """The numbers of the chips above the list, as JSON. They take longer than the list."""

    async def get(self) -> None:
        """Answer with the number for each state, and with the key "" for any state."""
        counts = await self.call(lambda: state_counts(self.dynbeat.context, **self.filters))
        self.finish({state: str(count) for state, count in counts.items()})
