"""A reverse proxy in front of a web server of the tests, as nginx is in front of Flower."""

import asyncio
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPHeaders
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

STARTS_WITHIN = 10.0
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")
#: Headers about one connection, not about the document.
OF_A_CONNECTION = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})


class ReverseProxy:
    """A context manager that listens on a port of the system and forwards to ``target``.

    Only paths below ``prefix`` are forwarded, unchanged. The others are answered 404 and are added
    to ``strays``: links of a page that leave the prefix. With ``keeps_host`` the server sees the
    host of the browser, otherwise its own, which is the default of nginx.
    """

    def __init__(self, target: str, *, prefix: str = "", keeps_host: bool = True) -> None:
        self.target = target
        self.prefix = prefix
        self.keeps_host = keeps_host
        self.strays: list[str] = []
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="reverse proxy", daemon=True)

    @property
    def url(self) -> str:
        """The URL of the first page, with the prefix and without a slash at the end."""
        return f"http://127.0.0.1:{self.port}{self.prefix}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.result(STARTS_WITHIN)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STARTS_WITHIN)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        sockets = bind_sockets(0, "127.0.0.1")
        self.port = sockets[0].getsockname()[1]
        server = HTTPServer(Application([(r".*", _Forward, {"proxy": self})]))
        server.add_sockets(sockets)
        self._started.set_result(None)
        await self._stop.wait()
        server.stop()
        await server.close_all_connections()


class _Forward(RequestHandler):
    """Forwards each request, and passes the response on."""

    SUPPORTED_METHODS = METHODS

    def initialize(self, proxy: ReverseProxy) -> None:
        """Keep the proxy, which has the options."""
        self._proxy = proxy

    def check_xsrf_cookie(self) -> None:
        """Leave the check to the server."""

    async def _forward(self, *_: Any) -> None:
        if not f"{self.request.path}/".startswith(f"{self._proxy.prefix}/"):
            self._proxy.strays.append(self.request.path)
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        response = await AsyncHTTPClient().fetch(self._request(), raise_error=False)
        self.set_status(response.code, response.reason)
        self._headers = HTTPHeaders()
        for name, value in _without_connection(response.headers):
            self.add_header(name, value)
        self.finish(response.body or None)

    get = head = post = put = delete = _forward

    def _request(self) -> HTTPRequest:
        sent = HTTPHeaders()
        for name, value in _without_connection(self.request.headers):
            if name.lower() != "host" or self._proxy.keeps_host:
                sent.add(name, value)
        sent["X-Real-Ip"] = sent["X-Forwarded-For"] = self.request.remote_ip or ""
        sent["X-Scheme"] = sent["X-Forwarded-Proto"] = "http"
        return HTTPRequest(
            f"{self._proxy.target}{self.request.uri}",
            method=self.request.method or "GET",
            headers=sent,
            body=self.request.body or None,
            allow_nonstandard_methods=True,
            follow_redirects=False,
            decompress_response=False,
        )


def _without_connection(headers: HTTPHeaders) -> Iterable[tuple[str, str]]:
    return [each for each in headers.get_all() if each[0].lower() not in OF_A_CONNECTION]
