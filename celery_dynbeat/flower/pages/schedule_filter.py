"""The filter of schedules in the URL: ``?owner=&owner_prefix=&task=&tag=&name=&text=&state=``."""

from typing import TypedDict

from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.pages.schedule_search import ScheduleSearch
from celery_dynbeat.insights.statistics.state_counts import state_counts


class Filters(TypedDict):
    """The arguments of ``filter_of`` and ``state_counts`` except the state."""

    owner: str | None
    owner_prefix: str | None
    task: str | None
    tag: str | None
    name_prefix: str | None
    text: str | None


class ScheduleFilterHandler(PageHandler):
    """A handler whose URL has the filter of schedules."""

    tab = "schedules"
    arguments = frozenset({"owner", "owner_prefix", "task", "tag", "name", "text"})

    @property
    def search(self) -> ScheduleSearch:
        """The filter of the schedules. ``?owner=`` is the application itself."""
        has_owner = "owner" in self.request.query_arguments
        return ScheduleSearch(
            owner=self.argument("owner") if has_owner else None,
            owner_prefix=self.argument("owner_prefix") or None,
            task=self.argument("task") or None,
            tag=self.argument("tag") or None,
            name=self.argument("name") or None,
            text=self.argument("text") or None,
        )

    @property
    def state(self) -> str:
        """The state by which the list is filtered, "" for any."""
        return self.argument("state")

    @property
    def filters(self) -> Filters:
        """The search as arguments of the queries."""
        search = self.search
        return Filters(
            owner=search.owner,
            owner_prefix=search.owner_prefix,
            task=search.task,
            tag=search.tag,
            name_prefix=search.name,
            text=search.text,
        )


class ScheduleCounts(ScheduleFilterHandler):
    """The numbers of the chips above the list, as JSON. They take longer than the list."""

    async def get(self) -> None:
        """Answer with the number for each state, and with the key "" for any state."""
        counts = await self.call(lambda: state_counts(self.dynbeat.context, **self.filters))
        self.finish({state: str(count) for state, count in counts.items()})
