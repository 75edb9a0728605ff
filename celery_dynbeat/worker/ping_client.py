"""The HTTP request of a ping, by the conventions of Healthchecks and Cronitor.

    state      Healthchecks, and every other host     cronitor.link, cronitor.io
    start      POST <url>/start?rid=<run id>          GET <url>?state=run&series=<run id>
    success    POST <url>?rid=<run id>                GET <url>?state=complete&series=<run id>
    fail       POST <url>/fail?rid=<run id>           GET <url>?state=fail&series=<run id>&message=

The body of ``fail`` at Healthchecks, and the message at Cronitor, is the type of the exception. Its
text is not sent, because it can contain personal data. A check of Healthchecks can be set to accept
POST only, so each of its requests is a POST.

A request has a total time. Answers to what a server can do:

    it accepts and never replies, or replies byte by byte   TimeoutError at the deadline
    it redirects                                            not followed: the status is returned
    its certificate is invalid                              ssl.SSLError
    its reply is long                                       only status line and headers are read

The environment variables https_proxy, http_proxy and no_proxy apply, as in requests and curl.
The deadline does not cover the resolver, and a connect tries each address for the whole time.
"""

import io
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

from celery_dynbeat.common.ping_urls import PingUrl

USER_AGENT = "celery-dynbeat"
_DEFAULT_PORTS = {"https": ":443", "http": ":80"}
_CRONITOR = ("cronitor.link", "cronitor.io")


class PingState(StrEnum):
    """The contents of a ping about a run."""

    START = "start"
    SUCCESS = "success"
    FAIL = "fail"


_CRONITOR_STATES = {
    PingState.START: "run",
    PingState.SUCCESS: "complete",
    PingState.FAIL: "fail",
}


@dataclass(frozen=True, slots=True)
class Ping:
    """A ping of a run. ``error`` is the name of an exception type, for ``fail``.

    ``owner``, ``schedule`` and ``attempt`` are for log records, and None if they are not known.
    """

    run_id: str
    state: PingState
    error: str | None = None
    owner: str | None = None
    schedule: str | None = None
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class PingRequest:
    """The HTTP request of a ping. Its URL holds a secret."""

    ping: Ping
    origin: str
    method: str
    url: str
    body: bytes | None


def ping_request(url: PingUrl, ping: Ping) -> PingRequest:
    """Return the request that sends ``ping`` to ``url``."""
    host = urlsplit(url.origin).hostname or ""
    is_cronitor = host in _CRONITOR or host.endswith(tuple(f".{name}" for name in _CRONITOR))
    return _cronitor_request(url, ping) if is_cronitor else _healthchecks_request(url, ping)


def _healthchecks_request(url: PingUrl, ping: Ping) -> PingRequest:
    path = url.path
    if ping.state is not PingState.SUCCESS:
        path = f"{path.rstrip('/')}/{ping.state}"
    target = _target(url._replace(path=path), {"rid": ping.run_id})
    return PingRequest(ping, url.origin, "POST", target, (ping.error or "").encode())


def _cronitor_request(url: PingUrl, ping: Ping) -> PingRequest:
    parameters = {"state": _CRONITOR_STATES[ping.state], "series": ping.run_id}
    if ping.error:
        parameters["message"] = ping.error
    return PingRequest(ping, url.origin, "GET", _target(url, parameters), None)


def _target(url: PingUrl, parameters: Mapping[str, str]) -> str:
    """Return the URL with ``parameters``, which replace parameters with the same names."""
    given = parse_qsl(url.query, keep_blank_values=True)
    others = [(name, value) for name, value in given if name not in parameters]
    # Without the default port, because some proxies do not know the host "hc-ping.com:443".
    base = url.origin.removesuffix(_DEFAULT_PORTS[url.origin.partition(":")[0]])
    return f"{base}{url.path or '/'}?{urlencode([*others, *parameters.items()])}"


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
        # build_opener() would add handlers for redirects, files and ftp.
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
