"""Flower's own ``/metrics``, with the gauges of the database."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from flower.views.monitor import Metrics
from prometheus_client import CollectorRegistry, generate_latest
from tornado.web import url

from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.common.settings import port_in_force
from celery_dynbeat.metrics.database_gauges import DatabaseGauges
from celery_dynbeat.metrics.exporting import registry_of
from celery_dynbeat.process.context import Context


class MetricsHandler(Metrics):
    """Flower's handler, followed by our gauges. Like Flower's, it needs no login."""

    def initialize(self, registry: CollectorRegistry, executor: ThreadPoolExecutor) -> None:
        """Take the registry of the gauges, and a thread that may wait for the database."""
        self._registry, self._executor = registry, executor

    async def get(self) -> None:
        """Print the default registry, and the gauges of the database."""
        loop = asyncio.get_running_loop()
        gauges = await loop.run_in_executor(self._executor, generate_latest, self._registry)
        await super().get()
        self.write(gauges)


def is_enabled(context: Context, *, option: bool) -> bool:
    """Return whether Flower's option or dynbeat_metrics_port asks for the gauges."""
    try:
        return option or port_in_force(context.settings.metrics_port) is not None
    except ConfigurationError:
        # The pages show the error.
        return False


def metrics_route(context: Context, *, executor: ThreadPoolExecutor) -> url:
    """Return the route that replaces Flower's. ``executor`` reads the gauges."""
    arguments = {"registry": registry_of([DatabaseGauges(context)]), "executor": executor}
    return url(r"/metrics", MetricsHandler, arguments)
