"""The HTTP endpoint that Prometheus scrapes: daemon threads of the main process.

A client that sends slowly occupies a thread and a file descriptor, which beat and worker need for
their work. The number of connections is therefore bounded. A new connection ends the oldest one.
"""

import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from http import HTTPStatus
from socketserver import TCPServer
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from celery_dynbeat.common.events import Event

logger = logging.getLogger(__name__)

PATH = "/metrics"
#: Open connections of an endpoint. Twice as many exist while the ended ones are not closed yet.
MAX_CONNECTIONS = 16


class _Handler(WSGIRequestHandler):
    # Seconds. A client that sends nothing must not keep a thread.
    timeout = 10

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Log nothing, because a scrape comes every few seconds."""


class _Server(ThreadingWSGIServer):
    # A second process must not share the port, because a scrape would reach either of the two.
    allow_reuse_port = False
    # Connections that wait to be accepted. With the default of 5, a scrape waits for slow clients.
    request_queue_size = 64

    def __init__(self, *args: Any, **options: Any) -> None:
        self._lock = threading.Lock()
        # The oldest first, with whether they were ended.
        self._connections: dict[Any, bool] = {}
        super().__init__(*args, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread. If there are too many connections, end the oldest one."""
        with self._lock:
            accepted = len(self._connections) < 2 * MAX_CONNECTIONS
            if accepted:
                self._connections[request] = False
            self._end_oldest()
        if accepted:
            super().process_request(request, client_address)
        else:
            super().shutdown_request(request)

    def _end_oldest(self) -> None:
        living = [each for each, is_ended in self._connections.items() if not is_ended]
        for request in living[:-MAX_CONNECTIONS]:
            self._connections[request] = True
            # Its thread then reads the end of the request, and closes it.
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing at the default level: a lost client is not an error of this process."""
        del request
        logger.debug("request of %s to the metrics failed: %r", client_address, sys.exception())

    def server_bind(self) -> None:
        # HTTPServer.server_bind looks up the name of the host, which can take seconds.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()


class Endpoint:
    """A running endpoint."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self.address, self.port = server.server_name, server.server_port
        self._thread = threading.Thread(
            target=server.serve_forever, name="dynbeat-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and free the port."""
        self._server.shutdown()
        self._server.server_close()

    def close_inherited(self) -> None:
        """Free the port in a child process, which otherwise keeps it after its parent."""
        self._server.socket.close()


def registry_of(collectors: Iterable[Collector]) -> CollectorRegistry:
    """Return a registry with ``collectors``, apart from the default one of the application."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    return registry


def open_endpoint(
    collectors: Iterable[Collector], *, address: str, ports: Sequence[int]
) -> Endpoint | None:
    """Serve ``collectors`` on the first free port; None, with a log record, if there is none."""
    app = _only_metrics(make_wsgi_app(registry_of(collectors)))
    error: OSError | None = None
    for port in ports:
        try:
            endpoint = Endpoint(_bound(app, address, port))
        except OSError as refused:
            error = refused
            continue
        logger.info(
            "metrics exported on http://%s:%s/metrics",
            f"[{endpoint.address}]" if ":" in endpoint.address else endpoint.address,
            endpoint.port,
            extra={"event": Event.METRICS_EXPORTED, "port": endpoint.port},
        )
        return endpoint
    tried = f"{ports[0]}" if len(ports) == 1 else f"{ports[0]}-{ports[-1]}"
    logger.error(
        "metrics are not exported: %s (address %s, port %s): give each process its own port"
        " (dynbeat_metrics_port)",
        error,
        address,
        tried,
        extra={"event": Event.METRICS_UNAVAILABLE},
    )
    return None


def _only_metrics(app: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``app`` for PATH; each other path is not found.

    ``app`` alone answers every path, and ``?name[]=`` with an empty page.
    """

    def limited(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if environ["PATH_INFO"] == PATH:
            return app({**environ, "QUERY_STRING": ""}, start_response)
        status = HTTPStatus.NOT_FOUND
        start_response(f"{status.value} {status.phrase}", [("Content-Type", "text/plain")])
        return [f"the metrics are at {PATH}\n".encode()]

    return limited


def _bound(app: Any, address: str, port: int) -> _Server:
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, bound = found[0]
    server = type("_Server", (_Server,), {"address_family": family})
    return make_server(str(bound[0]), port, app, server_class=server, handler_class=_Handler)
