"""The schedule pages of Flower in a thread of the test process, and a client for them.

The pages use the Dynbeat of the test, with its frozen clock. Flower connects to no broker: only
``start`` does, which the tests do not call.
"""

import asyncio
import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

from flower.urls import settings as flower_settings
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.options import options as options_of_flower

from celery_dynbeat import Dynbeat
from celery_dynbeat.flower.application import DynbeatFlower

#: The beginnings of the names of the threads that use the database for a page.
THREADS_WITH_CONNECTIONS = ("dynbeat-flower", "dynbeat-probe", "dynbeat-metrics-read")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def location(self) -> str:
        """Where the answer redirects to."""
        return self.headers.get("Location", "")


@dataclass
class Pages:
    """A client with cookies. ``user`` and ``password`` are sent as basic authentication."""

    port: int
    user: str = ""
    password: str = ""
    cookies: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, **headers: str) -> Answer:
        """Return the answer to a GET request."""
        return self._request("GET", path, None, headers)

    def post(
        self, path: str, fields: Mapping[str, Any] | None = None, *, token: str | None = None
    ) -> Answer:
        """Return the answer to a form. Its token is that of the cookie unless one is given."""
        token = self.token() if token is None else token
        body = urlencode({**(fields or {}), **({"_xsrf": token} if token else {})}, doseq=True)
        return self._request("POST", path, body, {})

    def post_raw(self, path: str, body: str, **headers: str) -> Answer:
        """Return the answer to a body and headers without a token."""
        return self._request("POST", path, body, headers)

    def token(self) -> str:
        """Return a token that fits the cookie; the first request sets the cookie."""
        if "_xsrf" not in self.cookies:
            self.get("/dynbeat/schedules")
        return self.cookies.get("_xsrf", "")

    def _request(
        self, method: str, path: str, body: str | None, headers: Mapping[str, str]
    ) -> Answer:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            sent["Content-Type"] = "application/x-www-form-urlencoded"
        if self.user:
            credentials = b64encode(f"{self.user}:{self.password}".encode()).decode()
            sent["Authorization"] = f"Basic {credentials}"
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{key}={value}" for key, value in self.cookies.items())
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
            for cookie in response.headers.get_all("Set-Cookie", []):
                key, _, value = cookie.partition(";")[0].partition("=")
                self.cookies[key] = value
            return Answer(response.status, dict(response.headers.items()), text)
        finally:
            connection.close()


@contextmanager
def flower_pages(dynbeat: Dynbeat, **options: Any) -> Iterator[Pages]:
    """Serve the pages of ``dynbeat`` with these options of Flower, on a port of the system."""
    given = SimpleNamespace(**{**options_of_flower.as_dict(), **options})
    started: Future[tuple[int, Any]] = Future()
    # The threads of other servers go on.
    others = set(threading.enumerate())
    thread = threading.Thread(target=_serve, args=(dynbeat, given, started), daemon=True)
    thread.start()
    port, stop = started.result(timeout=30)
    try:
        yield Pages(port)
    finally:
        stop()
        thread.join(timeout=30)
        # A call that timed out, a probe, or a read of the gauges returns its connection to the pool
        # when it ends. A pool that is closed before would leave the connection open.
        for each in set(threading.enumerate()) - others:
            if each.name.startswith(THREADS_WITH_CONNECTIONS):
                each.join(timeout=30)


def _serve(dynbeat: Dynbeat, options: Any, started: "Future[tuple[int, Any]]") -> None:
    try:
        asyncio.run(_serve_until_stopped(dynbeat, options, started))
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)


async def _serve_until_stopped(
    dynbeat: Dynbeat, options: Any, started: "Future[tuple[int, Any]]"
) -> None:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    application = DynbeatFlower(options=options, capp=dynbeat.app, settings=_settings(options))
    server = HTTPServer(application, xheaders=options.xheaders)
    [socket] = bind_sockets(0, "127.0.0.1")
    server.add_sockets([socket])
    started.set_result((socket.getsockname()[1], lambda: loop.call_soon_threadsafe(stopped.set)))
    await stopped.wait()
    server.stop()
    await server.close_all_connections()
    application.database_calls.close()
    application.executor.shutdown(wait=False)


def _settings(options: Any) -> Mapping[str, Any]:
    prefix = f"/{options.url_prefix.strip('/')}" if options.url_prefix else ""
    return {
        **flower_settings,
        **{name: prefix + flower_settings[name] for name in ("login_url", "static_url_prefix")},
    }
