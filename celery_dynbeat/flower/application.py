"""Flower with the schedule pages, started as Flower's own command starts Flower.

The options are Tornado options, like Flower's options. The command line, FLOWER_* environment
variables and flowerconfig.py can set them.

``reverse_url(name)`` adds Flower's URL prefix. Owners and names contain any character, so they are
arguments and not parts of a path.
"""

import atexit
import difflib
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import click
from celery import Celery
from flower import command
from flower.app import Flower
from tornado.options import define, options
from tornado.web import RequestHandler, StaticFileHandler, url

from celery_dynbeat.api import Dynbeat, dynbeat_of
from celery_dynbeat.flower.actions import ACTIONS
from celery_dynbeat.flower.base.access import why_wrong_hosts
from celery_dynbeat.flower.base.database_calls import DatabaseCalls
from celery_dynbeat.flower.base.handler import SHARED_STATIC, STATIC, DynbeatHandler
from celery_dynbeat.flower.editor.handlers import EditPage, NewPage, PreviewAction, SaveAction
from celery_dynbeat.flower.pages.alerts import AlertsPage
from celery_dynbeat.flower.pages.calendars import CalendarPage, CalendarsPage
from celery_dynbeat.flower.pages.nodes import (
    HealthFragment,
    NodesPage,
    OverviewFragment,
    ProblemsFragment,
)
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


PREFIX = "dynbeat_"

define(
    "dynbeat_unauthenticated_writes",
    type=bool,
    default=False,
    help="allow the schedule pages to change schedules without auth or basic_auth",
)
define(
    "dynbeat_allowed_hosts",
    type=str,
    multiple=True,
    help="hosts of Flower in URLs, in addition to loopback names and addresses",
)
define(
    "dynbeat_hide_arguments",
    type=bool,
    default=False,
    help="do not show the arguments of tasks on the schedule pages",
)
define(
    "dynbeat_query_timeout",
    type=float,
    default=10.0,
    help="seconds that a database call of a schedule page may take",
)


def unknown_option(arguments: Iterable[str]) -> str | None:
    """Return an error for the first unknown ``--dynbeat-*`` argument, or None if there is none.

    Flower ignores unknown options. A misspelt ``--dynbeat-hide-arguments`` would show arguments.
    """
    for argument in arguments:
        name = argument.lstrip("-").partition("=")[0].replace("-", "_")
        if not argument.startswith("-") or not name.startswith(PREFIX) or hasattr(options, name):
            continue
        known = [f"--{each.replace('_', '-')}" for each in options if each.startswith(PREFIX)]
        given = f"--{name.replace('_', '-')}"
        similar = difflib.get_close_matches(given, known, n=1) or known
        return f"unknown option {given}; did you mean {' or '.join(similar)}?"
    return None


def run(context: click.Context, arguments: Sequence[str]) -> None:
    """Do what Flower's own command does, with the application of the schedule pages.

    Raises UsageError for an unknown ``--dynbeat-*`` option, and for a wrong host.
    """
    error = unknown_option(arguments)
    if error is not None:
        raise click.UsageError(error, context)
    command.warn_about_celery_args_used_in_flower_command(context.parent, arguments)
    command.apply_env_options()
    command.apply_options(sys.argv[0], arguments)
    error = why_wrong_hosts(command.options.dynbeat_allowed_hosts)
    if error is not None:
        raise click.UsageError(error, context)
    command.extract_settings()
    command.setup_logging()

    application = DynbeatFlower(
        options=command.options, capp=context.obj.app, settings=command.settings
    )
    given = context.find_root().params.get("app")
    application.application_name = given if isinstance(given, str) else None
    atexit.register(application.stop)
    signal.signal(signal.SIGTERM, command.sigterm_handler)
    _start(context, application)


def _start(context: click.Context, application: DynbeatFlower) -> None:
    is_encrypted = "ssl_options" in command.settings
    banner: tuple[Any, ...] = (context.obj.app, is_encrypted)
    # Flower 2.2 opens its socket before it starts, and prints the port.
    if hasattr(application, "start_http_server"):
        banner = (*banner, application.start_http_server())
    if not context.obj.quiet:
        command.print_banner(*banner)
    with suppress(KeyboardInterrupt, SystemExit):
        application.start()
