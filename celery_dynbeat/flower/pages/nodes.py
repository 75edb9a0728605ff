"""The page "Beats and workers", and the strip of the overview, which each page loads later."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain

from celery_dynbeat.common.alert_kinds import AlertKind
from celery_dynbeat.common.states import State, Status
from celery_dynbeat.common.text import format_duration
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.charts.lines import sparkline
from celery_dynbeat.health.checks import Evaluation, Problem, evaluate
from celery_dynbeat.health.nodes import Limits, of_kind
from celery_dynbeat.health.probes import collect_health
from celery_dynbeat.insights.installation import RECENT, Overview, nodes, overview
from celery_dynbeat.insights.lag import lag_percentile
from celery_dynbeat.store.rollups import Minute

_SPARKLINE_WIDTH = 60
#: Problems of ``status`` that keep runs pending.
_UNSERVED = frozenset({"no_worker", "queue_not_consumed", "task_not_registered", "runs_overdue"})
#: Seconds. The open pages probe more often.
_PROBE_AGE = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A number of the strip, and the list that it leads to."""

    label: str
    value: str
    href: str
    #: The text after the number, in parentheses.
    note: str = ""
    #: The action that an operator should take. "" means none.
    alarm: str = ""
    #: SVG.
    chart: str = ""


def overview_items(
    found: Overview,
    *,
    link: Callable[..., str],
    late_after: timedelta,
    problems: Collection[str] = (),
) -> Sequence[Item]:
    """Return the items from left to right. ``link`` gives the URL of a route with arguments.

    ``late_after`` is when work that is overdue becomes a problem. ``problems`` has the
    codes of the problems that the last health check found.
    """
    return [
        Item(
            label="due",
            value=str(found.due),
            href=link("dynbeat_schedules", order="next_run_at"),
        ),
        _overdue(found, link, late_after),
        Item(
            label="running",
            value=str(found.running),
            href=link("dynbeat_runs", status=Status.RUNNING),
        ),
        Item(
            label="pending",
            value=str(found.pending),
            href=link("dynbeat_runs", status=[Status.PENDING, Status.SENT]),
            note=_oldest(found.oldest_pending_at, found.now) if found.pending.count else "",
            alarm="check workers" if found.pending.count and _UNSERVED & set(problems) else "",
        ),
        Item(
            label="failed in the last hour",
            value=f"{found.last().unsuccessful:,}",
            href=link("dynbeat_runs", status=[Status.FAILED, Status.LOST], since="1h"),
            chart=_counts_chart(found),
        ),
        Item(
            label="quarantined",
            value=str(found.quarantined),
            href=link("dynbeat_schedules", state=State.QUARANTINED),
            alarm="repair" if found.quarantined.count else "",
        ),
        Item(
            label="p99 lag",
            value=_duration(lag_percentile(found.last(), 0.99)),
            href=link("dynbeat_nodes"),
            chart=_lag_chart(found),
        ),
    ]


def _overdue(found: Overview, link: Callable[..., str], late_after: timedelta) -> Item:
    """Return the overdue schedules and runs. With overdue runs only, it leads to the runs."""
    oldest = found.oldest_overdue_at
    is_problem = oldest is not None and found.now - oldest > late_after
    href = link("dynbeat_schedules", state=State.OVERDUE)
    if found.overdue_runs.count and not found.overdue_schedules.count:
        href = link("dynbeat_runs", status=[Status.PENDING, Status.SENT])
    return Item(
        label="overdue",
        value=str(found.overdue),
        href=href,
        note=_oldest(found.oldest_overdue_at, found.now) if found.overdue.count else "",
        alarm="check beats" if found.overdue.count and is_problem else "",
    )


def _oldest(at: datetime | None, now: datetime) -> str:
    return "" if at is None else f"oldest {format_duration(now - at)}"


def _duration(value: timedelta | None) -> str:
    return "\N{EN DASH}" if value is None else format_duration(value)


def _counts_chart(found: Overview) -> str:
    values = [minute.figures.unsuccessful for minute in found.minutes]
    if not any(values):
        return ""
    return sparkline(values, label="Failed runs per minute", width=_SPARKLINE_WIDTH)


def _lag_chart(found: Overview) -> str:
    values = lags_of(found.minutes)
    if values.count(None) == len(values):
        return ""
    return sparkline(values, label="Lag p99 per minute", width=_SPARKLINE_WIDTH)


def lags_of(minutes: Sequence[Minute]) -> list[float | None]:
    """Return the lag p99 of each minute in seconds, or None without a lag."""
    lags = (lag_percentile(each.figures, 0.99) for each in minutes)
    return [None if lag is None else lag.total_seconds() for lag in lags]


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
