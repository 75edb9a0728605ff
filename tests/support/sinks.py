"""Servers that receive messages in tests, and one that never answers."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class HttpSink:
    """Records the JSON bodies of requests and answers with ``status`` and ``location``.

    ``received`` has all bodies, ``bodies`` those that were accepted. While ``gate`` is closed, it
    does not answer.
    """

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.bodies: list[dict[str, Any]] = []
        self.status = 200
        self.location: str | None = None
        self.gate = threading.Event()
        self.gate.set()
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                """Record the request."""
                length = int(self.headers["Content-Length"])
                body = json.loads(self.rfile.read(length))
                sink.received.append(body)
                sink.gate.wait()
                if sink.status < 300:
                    sink.bodies.append(body)
                self.send_response(sink.status)
                self.send_header("Content-Length", "0")
                if sink.location is not None:
                    self.send_header("Location", sink.location)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port

    @property
    def url(self) -> str:
        """Apprise's URL, with a password and a path that must stay secret."""
        return f"json://user:hunter2-secret@127.0.0.1:{self.port}/token-4711-secret"

    @contextmanager
    def serving(self) -> Iterator["HttpSink"]:
        """Serve in a thread."""
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.gate.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()


@contextmanager
def hanging_server() -> Iterator[int]:
    """Yield the port of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]
