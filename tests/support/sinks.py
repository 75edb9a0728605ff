"""Servers that receive messages in tests: HTTP, mail, and one that never answers."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from aiosmtpd.controller import Controller

if TYPE_CHECKING:
    from email.message import EmailMessage


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


class _FreePort(Controller):
    """A mail server on a port that the system chooses."""

    def _trigger_server(self) -> None:
        server: Any = self.server
        self.port = server.sockets[0].getsockname()[1]
        super()._trigger_server()  # type: ignore[no-untyped-call]


class MailSink:
    """Records mails."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self._controller = _FreePort(self, hostname="127.0.0.1", port=0)

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        """Record a mail; aiosmtpd calls this."""
        del server, session
        parsed: Any = message_from_bytes(envelope.content, policy=policy.default)
        self.mails.append(parsed)
        return "250 OK"

    @property
    def url(self) -> str:
        """Apprise's URL."""
        return mail_url(self._controller.port)

    @contextmanager
    def serving(self) -> Iterator["MailSink"]:
        """Serve in a thread."""
        self._controller.start()
        yield self
        self._controller.stop()


def mail_url(port: int) -> str:
    """Return Apprise's URL for a mail server on a port of this machine."""
    return f"mailto://127.0.0.1:{port}/?from=beat@example.com&to=ops@example.com&mode=insecure"


@contextmanager
def hanging_server() -> Iterator[int]:
    """Yield the port of a server that accepts connections and never answers."""
    with listening() as server:
        yield server.getsockname()[1]


def listening() -> socket.socket:
    """Return a listening socket. Clients can connect before ``accept`` is called."""
    return socket.create_server(("127.0.0.1", 0))


def seconds_until_closed(server: socket.socket) -> float:
    """Accept a connection, never answer; return for how long the client kept it open."""
    connection, _address = server.accept()
    began = time.monotonic()
    with connection:
        while connection.recv(1_024):
            pass
    return time.monotonic() - began
