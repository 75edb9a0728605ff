"""An HTTP server on this machine that records the pings it receives."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from tests.support.waiting import wait_until


class Received(NamedTuple):
    """A request. ``query`` has one value for each name."""

    method: str
    path: str
    query: dict[str, str]
    body: str
    #: The request line and the headers, as a client writes them.
    text: str


class PingSink:
    """Replies to each request with ``status``, after ``gate`` is set.

    A test clears ``gate`` to let the server hang: it has received a request and does not reply.
    """

    def __init__(self) -> None:
        self.requests: list[Received] = []
        self.status = 200
        self.headers: dict[str, str] = {}
        self.body = b"OK"
        self.gate = threading.Event()
        self.gate.set()
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                sink._receive(self)

            do_POST = do_GET  # noqa: N815 - http.server calls it

            def log_message(self, *_: Any) -> None:
                """Write nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # The default waits for handlers that a test left hanging.
        self._server.block_on_close = False
        self.netloc = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.netloc}"

    def _receive(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0)).decode()
        parts = urlsplit(handler.path)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        text = f"{handler.requestline}\n{handler.headers}"
        self.requests.append(Received(handler.command, parts.path, query, body, text))
        self.gate.wait(60)
        try:
            self._reply(handler)
        except OSError:
            # The client did not wait for the reply.
            handler.close_connection = True

    def _reply(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(self.status)
        for name, value in {**self.headers, "Content-Length": str(len(self.body))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(self.body)

    def paths(self, run_id: str) -> Sequence[str]:
        """Return the paths of the pings of a run, in the order of their arrival."""
        return [each.path for each in self.requests if each.query.get("rid") == run_id]

    def wait_for(self, count: int, *, within: float = 20) -> Sequence[Received]:
        """Return the requests when there are ``count`` of them or more."""
        wait_until(
            lambda: len(self.requests) >= count,
            within=within,
            message=f"fewer than {count} pings: {self.requests}",
        )
        return list(self.requests)

    def serve(self) -> None:
        """Serve until ``close``."""
        self._server.serve_forever(poll_interval=0.05)

    def close(self) -> None:
        """End the server; requests that wait for ``gate`` get their reply."""
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def ping_sink() -> Iterator[PingSink]:
    """Yield a running sink."""
    sink = PingSink()
    thread = threading.Thread(target=sink.serve, daemon=True)
    thread.start()
    try:
        yield sink
    finally:
        sink.close()
        thread.join(10)
