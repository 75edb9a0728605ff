"""Flower's application, with the schedule pages."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from celery import Celery
from flower.app import Flower
from tornado.web import url

from celery_dynbeat.api import Dynbeat, dynbeat_of
from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.flower.base.database_calls import DatabaseCalls
from celery_dynbeat.flower.metrics import is_enabled, metrics_route
from celery_dynbeat.flower.routes import routes
from celery_dynbeat.flower.templates import DynbeatLoader


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
        added = [*routes(), *self._metrics_routes()]
        self.add_handlers(r".*", [_prefixed(route, options.url_prefix) for route in added])

    def _metrics_routes(self) -> Sequence[url]:
        try:
            context = self.dynbeat.context
        except ConfigurationError:
            # The pages show the error.
            return []
        is_on = is_enabled(context, option=self.options.dynbeat_metrics)
        return [metrics_route(context, executor=self.database_calls.metrics)] if is_on else []

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
