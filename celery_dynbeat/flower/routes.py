"""The URLs of our pages and actions. ``reverse_url(name)`` adds Flower's URL prefix.

Owners and names contain any character, so they are arguments and not parts of a path.
"""

from collections.abc import Sequence

from tornado.web import RequestHandler, StaticFileHandler, url

from celery_dynbeat.flower.actions.holds import HoldAction, ReleaseAction
from celery_dynbeat.flower.actions.runs import CancelAction, RerunAction
from celery_dynbeat.flower.actions.saving import PreviewAction, SaveAction
from celery_dynbeat.flower.actions.schedules import (
    DeleteAction,
    PauseAction,
    ResumeAction,
    RunNowAction,
    SkipNextAction,
    UnskipAction,
)
from celery_dynbeat.flower.base import static_files
from celery_dynbeat.flower.pages.alerts import AlertsPage
from celery_dynbeat.flower.pages.calendars import CalendarPage, CalendarsPage
from celery_dynbeat.flower.pages.editor import EditPage, NewPage
from celery_dynbeat.flower.pages.home import HomePage
from celery_dynbeat.flower.pages.nodes import (
    HealthFragment,
    NodesPage,
    ProblemsFragment,
)
from celery_dynbeat.flower.pages.overview import OverviewFragment
from celery_dynbeat.flower.pages.owner import OwnerPage
from celery_dynbeat.flower.pages.run import RunLinkData, RunPage
from celery_dynbeat.flower.pages.runs import RunsPage
from celery_dynbeat.flower.pages.schedule import ScheduleCharts, SchedulePage
from celery_dynbeat.flower.pages.schedule_filter import ScheduleCounts
from celery_dynbeat.flower.pages.schedules import SchedulesPage
from celery_dynbeat.flower.pages.timeline import ForecastFragment, TimelinePage


def routes() -> Sequence[url]:
    """Return all routes."""
    return [
        url(r"/dynbeat/?", HomePage, name="dynbeat_home"),
        _route("schedules", SchedulesPage),
        _route("schedule", SchedulePage),
        _route("schedule_charts", ScheduleCharts),
        _route("owner", OwnerPage),
        _route("calendars", CalendarsPage),
        _route("calendar", CalendarPage),
        _route("runs", RunsPage),
        _route("run", RunPage, path="/(.+)"),
        _route("run_link", RunLinkData, path="/(.+)"),
        _route("rerun_runs", RerunAction),
        _route("cancel_runs", CancelAction),
        _route("timeline", TimelinePage),
        _route("forecast", ForecastFragment),
        _route("alerts", AlertsPage),
        _route("nodes", NodesPage),
        _route("overview", OverviewFragment),
        _route("health", HealthFragment),
        _route("problems", ProblemsFragment),
        _route("hold", HoldAction),
        _route("schedule_counts", ScheduleCounts),
        _route("pause", PauseAction),
        _route("resume", ResumeAction),
        _route("run_now", RunNowAction),
        _route("delete", DeleteAction),
        _route("skip_next", SkipNextAction),
        _route("unskip", UnskipAction),
        _route("release", ReleaseAction),
        _route("new", NewPage),
        _route("edit", EditPage),
        _route("save", SaveAction),
        _route("preview", PreviewAction),
        url(
            # Tornado's handler raises ValueError for a path with NUL.
            r"/dynbeat/static/([a-z_.]+)",
            StaticFileHandler,
            {"path": str(static_files.FOLDER)},
            name="dynbeat_static",
        ),
    ]


def _route(name: str, handler: type[RequestHandler], *, path: str = "") -> url:
    """Return the route ``/dynbeat/NAME``, with a pattern for the rest of its path."""
    return url(rf"/dynbeat/{name}{path}", handler, name=f"dynbeat_{name}")
