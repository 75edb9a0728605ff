"""Flower's application, with the URLs of the schedule pages.

``reverse_url(name)`` adds Flower's URL prefix. Owners and names contain any character, so they are
arguments and not parts of a path.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from celery import Celery
from flower.app import Flower
from tornado.web import RequestHandler, StaticFileHandler, url

from celery_dynbeat.api import Dynbeat, dynbeat_of
from celery_dynbeat.flower.actions import ACTIONS
from celery_dynbeat.flower.base.database_calls import DatabaseCalls
from celery_dynbeat.flower.base.handler import SHARED_STATIC, STATIC, DynbeatHandler
from celery_dynbeat.flower.editor.handlers import EditPage, NewPage, PreviewAction, SaveAction
from celery_dynbeat.flower.pages.alerts import AlertsPage
from celery_dynbeat.flower.pages.calendars import CalendarPage, CalendarsPage
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
from celery_dynbeat.flower.pages.schedules import ScheduleCounts, SchedulesPage
from celery_dynbeat.flower.pages.timeline import ForecastFragment, TimelinePage
from celery_dynbeat.flower.templates import DynbeatLoader


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
        _route("timeline", TimelinePage),
        _route("forecast", ForecastFragment),
        _route("alerts", AlertsPage),
        _route("nodes", NodesPage),
        _route("overview", OverviewFragment),
        _route("health", HealthFragment),
        _route("problems", ProblemsFragment),
        _route("schedule_counts", ScheduleCounts),
        _route("new", NewPage),
        _route("edit", EditPage),
        _route("save", SaveAction),
        _route("preview", PreviewAction),
        *(_route(each.name, each.handler, action=each) for each in ACTIONS.values()),
        url(
            r"/dynbeat/static/(rule\.(?:css|js))",
            StaticFileHandler,
            {"path": str(SHARED_STATIC)},
            name="dynbeat_shared_static",
        ),
        url(
            # Tornado's handler raises ValueError for a path with NUL.
            r"/dynbeat/static/([a-z_.]+)",
            StaticFileHandler,
            {"path": str(STATIC)},
            name="dynbeat_static",
        ),
    ]


def _route(name: str, handler: type[RequestHandler], *, path: str = "", **given: object) -> url:
    """Return the route ``/dynbeat/NAME``, with a pattern for the rest of its path."""
    return url(rf"/dynbeat/{name}{path}", handler, given, name=f"dynbeat_{name}")


class HomePage(DynbeatHandler):
    """``/dynbeat`` and ``/dynbeat/``."""

    def get(self) -> None:
        """Redirect to the schedules."""
        self.redirect(self.link("dynbeat_schedules"))


class DynbeatFlower(Flower):
    """Flower with our pages and its own, behind its authentication and its URL prefix.

    Flower has no interface for plug-ins, and its constructor overwrites ``handlers=``. Our routes
    are therefore added afterwards. Tornado inserts them before the route that answers 404.
    """

    #: The value of ``-A`` on the command line.
    application_name: str | None = None

    def __init__(self, *, options: Any, capp: Celery, settings: Mapping[str, Any]) -> None:
        loader = DynbeatLoader(settings["template_path"])
        super().__init__(options=options, capp=capp, **{**settings, "template_loader": loader})
        self.database_calls = DatabaseCalls(timeout=options.dynbeat_query_timeout)
        self.add_handlers(r".*", [_prefixed(route, options.url_prefix) for route in routes()])

    @cached_property
    def dynbeat(self) -> Dynbeat:
        """The Dynbeat of the Celery application. Raises ConfigurationError if it has none."""
        return dynbeat_of(self.capp)

    def stop(self) -> None:
        """Stop Flower, and do not start more database calls."""
        self.database_calls.close()
        super().stop()


def _prefixed(route: url, prefix: str | None) -> url:
    # Flower adds the prefix only to the routes that its constructor knows.
    pattern = route.regex.pattern
    path = f"/{prefix.strip('/')}{pattern}" if prefix else pattern
    return url(path, route.handler_class, route.kwargs, route.name)
