"""The endpoint of a beat."""

import logging
import time
from collections.abc import Iterable
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client import Metric as Family
from prometheus_client.registry import Collector

from celery_dynbeat.common.clock import DatabaseClock
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.settings import MetricsEndpoint
from celery_dynbeat.metrics.counting import ProcessCounts, family
from celery_dynbeat.metrics.database_gauges import DatabaseGauges
from celery_dynbeat.metrics.definitions import CLOCK_OFFSET, LAST_PASS
from celery_dynbeat.process.context import Context

logger = logging.getLogger(__name__)


class BeatMetrics:
    """The metrics of a beat. The constructor starts to count and opens the endpoint.

    ``port`` is None if the port could not be opened. The beat then works without an endpoint.
    """

    def __init__(self, context: Context, endpoint: MetricsEndpoint) -> None:
        self._clock = context.clock
        self._counts = ProcessCounts()
        self._counts.connect(context.database.engine)
        collectors: list[Collector] = [self._counts, self, DatabaseGauges(context)]
        self._server = _serve(collectors, endpoint)
        self.port = None if self._server is None else self._server[0].server_port

    def collect(self) -> Iterable[Family]:
        """Return the gauges of this process. They need no query."""
        yield family(LAST_PASS, time.monotonic() - self._counts.last_pass_at)
        # The last reading of the database's clock. Before the first, there is no gauge.
        offset = self._clock.offset() if isinstance(self._clock, DatabaseClock) else None
        if offset is not None:
            yield family(CLOCK_OFFSET, offset.total_seconds())

    def close(self) -> None:
        """Count nothing more, and free the port."""
        self._counts.disconnect()
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join()


def _serve(
    collectors: Iterable[Collector], endpoint: MetricsEndpoint
) -> tuple[WSGIServer, Thread] | None:
    """Serve ``collectors``; return None, with a log record, if the port is in use."""
    port, address = endpoint
    # Apart from the default registry of the application.
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    try:
        server, thread = start_http_server(port, address, registry)
    except OSError as error:
        logger.error(  # noqa: TRY400 - beat works without the endpoint
            "metrics are not exported: %s (address %s, port %s): give each beat its own port"
            " (DYNBEAT_METRICS)",
            error,
            address,
            port,
            extra={"event": Event.METRICS_UNAVAILABLE},
        )
        return None
    logger.info(
        "metrics exported on http://%s:%s/metrics",
        f"[{address}]" if ":" in address else address,
        server.server_port,
        extra={"event": Event.METRICS_EXPORTED, "port": server.server_port},
    )
    return server, thread
