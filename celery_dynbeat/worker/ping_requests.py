"""The HTTP request of a ping, by the conventions of Healthchecks and Cronitor.

    state      Healthchecks, and every other host     cronitor.link, cronitor.io
    start      POST <url>/start?rid=<run id>          GET <url>?state=run&series=<run id>
    success    POST <url>?rid=<run id>                GET <url>?state=complete&series=<run id>
    fail       POST <url>/fail?rid=<run id>           GET <url>?state=fail&series=<run id>&message=

The body of ``fail`` at Healthchecks, and the message at Cronitor, is the type of the exception.
Its text is not sent: it can hold personal data. A check of Healthchecks can be set to accept POST
only, so each of its requests is a POST.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import parse_qsl, urlencode, urlsplit

from celery_dynbeat.common.ping_urls import PingUrl

_DEFAULT_PORTS = {"https": ":443", "http": ":80"}
_CRONITOR = ("cronitor.link", "cronitor.io")


class PingState(StrEnum):
    """What a ping reports of a run."""

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

    ``owner``, ``schedule`` and ``attempt`` are for log records; None if they are not known.
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
    """Return the URL with ``parameters``, which replace those of the same names."""
    given = parse_qsl(url.query, keep_blank_values=True)
    others = [(name, value) for name, value in given if name not in parameters]
    # Not with the default port: some proxies do not know the host "hc-ping.com:443".
    base = url.origin.removesuffix(_DEFAULT_PORTS[url.origin.partition(":")[0]])
    return f"{base}{url.path or '/'}?{urlencode([*others, *parameters.items()])}"
