"""The page "Beats and workers": nodes, holds, backfills and reruns in progress."""

import asyncio
from collections.abc import Sequence
from itertools import chain

from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.charts.sparkline import sparkline
from celery_dynbeat.monitoring.health import evaluate
from celery_dynbeat.monitoring.probes import collect_health
from celery_dynbeat.monitoring.statistics.installation import installation
from celery_dynbeat.monitoring.statistics.overview import MinuteCount, MinuteLag, overview


class NodesPage(PageHandler):
    """The beats and workers, and what beat works on."""

    tab = "nodes"

    async def get(self) -> None:
        """Render the page."""
        context = self.dynbeat.context
        found, last_hour = await asyncio.gather(
            self.call(lambda: installation(context)), self.call(lambda: overview(context))
        )
        await self.render_page(
            "nodes.html",
            found=found,
            now=found.now,
            holds=[*found.holds_of_everything, *found.holds_of_owners],
            rate_line=_rate_line(last_hour.dispatched_by_minute),
            lag_line=_lag_line(last_hour.lag_by_minute),
        )


class HealthFragment(PageHandler):
    """The problems of the installation, which the page loads later: a probe can take seconds."""

    tab = "nodes"

    async def get(self) -> None:
        """Render the fragment."""
        found = await self.call(lambda: evaluate(collect_health(self.dynbeat.app)))
        self.render("health.html", page=self, found=found)


def _rate_line(minutes: Sequence[MinuteCount]) -> str:
    values = [float(each.count) for each in minutes]
    return sparkline(values, label="Sent runs of each minute in the last hour", width=120)


def _lag_line(minutes: Sequence[MinuteLag]) -> str:
    values = [None if each.p99 is None else each.p99.total_seconds() for each in minutes]
    known = max(chain([0.0], (value for value in values if value is not None)))
    label = f"Lag of each minute in the last hour, 99th percentile, at most {known:.3g} s"
    return sparkline(values, label=label, width=120)
