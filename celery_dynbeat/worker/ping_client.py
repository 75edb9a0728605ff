"""Send the HTTP request of a ping, within a total time.

Answers to what a server can do:

    it accepts and never replies, or replies byte by byte   TimeoutError at the deadline
    it redirects                                            not followed: the status is returned
    its certificate is invalid                              ssl.SSLError
    its reply is long                                       only status line and headers are read

The environment variables https_proxy, http_proxy and no_proxy apply, as in requests and curl.
The deadline does not cover the resolver, and a connect tries each address for the whole time.
"""

import io
import time
from functools import cached_property
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

from celery_dynbeat.worker.ping_requests import PingRequest

USER_AGENT = "celery-dynbeat"


class PingClient:
    """Sends pings. Threads can share it. ``timeout`` is in seconds."""

    def __init__(self, *, timeout: float) -> None:
        self._timeout = timeout

    def send(self, request: PingRequest) -> int:
        """Send ``request`` and return the HTTP status. Raises OSError or HTTPException."""
        headers = {"User-Agent": USER_AGENT, "Content-Type": "text/plain; charset=utf-8"}
        message = Request(  # noqa: S310 - parse_ping_url allows http and https only
            request.url, data=request.body, headers=headers, method=request.method
        )
        with self._opener.open(message, timeout=self._timeout) as response:
            status: int = response.status
        return status

    @cached_property
    def _opener(self) -> OpenerDirector:
        # Not build_opener(): it would add the handlers of redirects, of files and of ftp.
        opener = OpenerDirector()
        opener.addheaders = []
        for handler in (ProxyHandler(), _HttpHandler(), _HttpsHandler()):
            opener.add_handler(handler)
        return opener


class _TimedReader(io.RawIOBase):
    """Reads from a socket until a deadline."""

    def __init__(self, sock: Any, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        received: int = self._sock.recv_into(buffer)
        return received


class _TimedSocket:
    """The part of a socket that HTTPResponse uses."""

    def __init__(self, sock: Any, deadline: float) -> None:
        self._reader = _TimedReader(sock, deadline)

    def makefile(self, mode: str) -> io.BufferedReader:
        del mode
        return io.BufferedReader(self._reader)


class _HttpConnection(HTTPConnection):
    """A connection whose whole reply must arrive before a deadline."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline = time.monotonic() + (self.timeout or 0)

    def response_class(self, sock: Any, **options: Any) -> HTTPResponse:  # type: ignore[override]
        """Return the response to read from ``sock``. HTTPConnection calls this attribute."""
        timed: Any = _TimedSocket(sock, self._deadline)
        return HTTPResponse(timed, **options)


class _HttpsConnection(_HttpConnection, HTTPSConnection):
    """The same over TLS. Its context verifies the certificate and the host."""


class _HttpHandler(HTTPHandler):
    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_HttpConnection, req)


class _HttpsHandler(HTTPSHandler):
    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_HttpsConnection, req, context=self._context)  # type: ignore[attr-defined]
