"""Export the metrics of a beat while it runs."""

import logging
from collections.abc import Iterable
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from celery_dynbeat.common.events import Event
from celery_dynbeat.metrics.counts import ProcessCounts
from celery_dynbeat.metrics.database_gauges import DatabaseGauges
from celery_dynbeat.metrics.definitions import Exporter, Kind, exported_by
from celery_dynbeat.metrics.process_gauges import ClockGauge, PassGauge
from celery_dynbeat.metrics.receivers import Receivers
from celery_dynbeat.process.context import Context

logger = logging.getLogger(__name__)


class BeatMetrics:
    """The metrics of a beat. The constructor starts to count and opens the endpoint.

    ``port`` is None if the port could not be opened. The beat then works without an endpoint.
    """

    def __init__(self, context: Context, *, port: int) -> None:
        counts = ProcessCounts()
        self._receivers = Receivers(counts)
        # Export the counters without labels from the start: increase() then sees the first event.
        for metric in exported_by(Exporter.BEAT):
            if metric.kind is Kind.COUNTER and not metric.labels:
                counts.add(metric, 0)
        self._receivers.connect(context.database.engine)
        collectors: list[Collector] = [
            counts,
            PassGauge(lambda: self._receivers.last_pass_at),
            ClockGauge(context.clock),
            DatabaseGauges(context),
        ]
        self._server = _serve(collectors, address=context.settings.metrics_address, port=port)
        self.port = None if self._server is None else self._server[0].server_port

    def close(self) -> None:
        """Count nothing more, and free the port."""
        self._receivers.disconnect()
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join()


def registry_of(collectors: Iterable[Collector]) -> CollectorRegistry:
    """Return a registry with ``collectors``, apart from the default one of the application."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    return registry


def _serve(
    collectors: Iterable[Collector], *, address: str, port: int
) -> tuple[WSGIServer, Thread] | None:
    """Serve ``collectors``; return None, with a log record, if the port is in use."""
    try:
        server, thread = start_http_server(port, address, registry_of(collectors))
    except OSError as error:
        logger.error(  # noqa: TRY400 - beat works without the endpoint
            "metrics are not exported: %s (address %s, port %s): give each beat its own port"
            " (DYNBEAT_METRICS_PORT)",
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
