"""The strip of the overview, which each page loads after its content."""

from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.pages.overview_items import overview_items
from celery_dynbeat.health.evaluation import Limits
from celery_dynbeat.insights.statistics.overview import overview

#: Seconds. The open pages probe more often.
_PROBE_AGE = 60


class OverviewFragment(PageHandler):
    """The strip of the overview, as a fragment of HTML."""

    tab = "overview"

    async def get(self) -> None:
        """Render the fragment."""
        found = await self.call(lambda: overview(self.dynbeat.context))
        health = self.application.database_calls.health.last(max_age=_PROBE_AGE)
        items = overview_items(
            found,
            link=self.link,
            late_after=Limits.of(self.dynbeat.context.settings).lag,
            problems=[] if health is None else [each.code for each in health.problems],
        )
        await self.render_fragment("overview.html", items=items)
