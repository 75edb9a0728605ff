"""The strip of the overview, which each page loads after its content."""

from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.pages.overview_items import overview_items
from celery_dynbeat.monitoring.statistics.overview import overview


class OverviewFragment(PageHandler):
    """The strip of the overview: a fragment of HTML."""

    tab = "overview"

    async def get(self) -> None:
        """Render the fragment."""
        found = await self.call(lambda: overview(self.dynbeat.context))
        self.render("overview.html", items=overview_items(found, link=self.link))
