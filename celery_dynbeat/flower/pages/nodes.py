"""The page "Beats and workers": nodes and holds."""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import chain

from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.common.states import State, Status
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.charts.lines import sparkline
from celery_dynbeat.flower.pages.overview import lags_of
from celery_dynbeat.health.checks import Evaluation, Problem, evaluate
from celery_dynbeat.health.nodes import of_kind
from celery_dynbeat.health.probes import collect_health
from celery_dynbeat.insights.installation import RECENT, nodes, overview
from celery_dynbeat.insights.lag import lag_percentile
from celery_dynbeat.store.rollups import Minute

#: Seconds after which the open pages probe again.
PROBED_EVERY = 10
#: Code of a problem -> route and arguments of its rows, or their part of this page.
_UNSTARTED: Mapping[str, object] = {"status": [Status.PENDING, Status.SENT]}
_ROWS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "schedules_late": ("schedules", {"state": State.OVERDUE}),
    "schedules_quarantined": ("schedules", {"state": State.QUARANTINED}),
    "unsupported_triggers": ("schedules", {"state": State.QUARANTINED}),
    "schedules_failing": ("schedules", {"state": State.FAILING}),
    "schedules_held": ("schedules", {"state": State.HELD}),
    "runs_overdue": ("runs", _UNSTARTED),
    "runs_wait_for_place": ("runs", _UNSTARTED),
    "no_worker": ("runs", _UNSTARTED),
    "queue_not_consumed": ("runs", _UNSTARTED),
    "task_not_registered": ("runs", _UNSTARTED),
    "queue_refused": ("runs", _UNSTARTED),
    "publish_failed": ("runs", _UNSTARTED),
}
_PARTS: Mapping[str, str] = {
    "no_beat": "db-beats",
    "beat_failing": "db-beats",
    "notifier_fallback": "db-beats",
    AlertKind.BEATS_MISSING: "db-beats",
    AlertKind.WORKERS_MISSING: "db-workers",
    "clocks_differ": "db-clock",
}


class NodesPage(PageHandler):
    """The beats and workers, and the holds."""

    tab = "nodes"

    async def get(self) -> None:
        """Render the page."""
        context = self.dynbeat.context
        shown, found, holds = await asyncio.gather(
            self.call(lambda: nodes(context)),
            self.call(lambda: overview(context)),
            self.call(self.schedules.holds),
        )
        recent = found.last(RECENT)
        await self.render_page(
            "nodes.html",
            found=found,
            beats=of_kind(shown, NodeKind.BEAT),
            workers=of_kind(shown, NodeKind.WORKER),
            lag_p50=lag_percentile(recent, 0.5),
            lag_p99=lag_percentile(recent, 0.99),
            first_wrong_clock=next((each for each in shown if each.clock_differs), None),
            now=found.now,
            holds=holds,
            rate_line=_rate_line(found.minutes),
            lag_line=_lag_line(found.minutes),
        )


class _HealthHandler(PageHandler):
    tab = "nodes"
    # All requests share one probe, in a separate thread.
    is_counted = False

    async def evaluation(self, *, max_age: float = 0) -> Evaluation:
        """Return the problems and warnings, at most ``max_age`` seconds old."""
        calls, app = self.application.database_calls, self.dynbeat.app
        return await calls.health.run(lambda: evaluate(collect_health(app)), max_age=max_age)

    def rows_url(self, problem: Problem) -> str | None:
        """Return the URL of the rows with a problem or a warning, or None if there are no rows."""
        part = _PARTS.get(problem.code)
        if part is not None:
            return f"{self.link('dynbeat_nodes')}#{part}"
        route, query = _ROWS.get(problem.code, ("", {}))
        return self.link(f"dynbeat_{route}", **query) if route else None


class HealthFragment(_HealthHandler):
    """The problems of the installation. The page loads them later: a probe can take seconds."""

    async def get(self) -> None:
        """Render the fragment."""
        await self.render_fragment("health.html", found=await self.evaluation())


class ProblemsFragment(_HealthHandler):
    """A banner for each problem, which each page loads later and again."""

    async def get(self) -> None:
        """Render the fragment."""
        found = await self.evaluation(max_age=PROBED_EVERY)
        # The page itself has a banner without a beat.
        problems = [each for each in found.problems if each.code != "no_beat"]
        await self.render_fragment("problems.html", problems=problems)


def _rate_line(minutes: Sequence[Minute]) -> str:
    values = [float(each.figures.sent) for each in minutes]
    return sparkline(values, label="Runs sent per minute in the last hour", width=120)


def _lag_line(minutes: Sequence[Minute]) -> str:
    values = lags_of(minutes)
    known = max(chain([0.0], (value for value in values if value is not None)))
    label = f"Lag per minute in the last hour, 99th percentile, at most {known:.3g} s"
    return sparkline(values, label=label, width=120)
