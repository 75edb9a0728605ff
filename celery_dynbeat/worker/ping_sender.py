"""Look up the URLs of pings and send them, in threads of the worker's main process.

    put -> [queue] -> lookup thread: one query, the checks -> [queue of the origin] -> its thread

Each origin has its own thread and queue: a server that never replies delays only its own pings.
The queues are bounded, and so is the number of threads, by dynbeat_ping_hosts. The pings of a run
keep their order. Nothing is sent again: monitors of this kind report a ping that is missing.
"""

import logging
import time
from collections.abc import Collection
from functools import partial

from celery_dynbeat.common.events import Event
from celery_dynbeat.common.ping_urls import parse_ping_url
from celery_dynbeat.db.engine import Database
from celery_dynbeat.runtime.queue_thread import QueueThread
from celery_dynbeat.store import ping_urls
from celery_dynbeat.telemetry import events
from celery_dynbeat.telemetry.emitting import emit
from celery_dynbeat.worker.ping_client import PingClient
from celery_dynbeat.worker.ping_requests import Ping, PingRequest, ping_request

logger = logging.getLogger(__name__)

#: Pings in each queue.
QUEUE_SIZE = 1_000
#: Seconds for one request.
TIMEOUT = 5.0
#: Seconds for the queued pings at the end of the worker.
CLOSE_TIMEOUT = 2.0


class PingSender:
    """Sends pings in the background. ``allowed`` are the origins of dynbeat_ping_hosts."""

    def __init__(self, database: Database, *, allowed: Collection[str]) -> None:
        self._database = database
        self._allowed = allowed
        self._client = PingClient(timeout=TIMEOUT)
        self._lookups = QueueThread(self._look_up, name="dynbeat-pings", size=QUEUE_SIZE)
        self._by_origin: dict[str, QueueThread[PingRequest]] = {}
        # Origins whose last ping failed.
        self._failing: set[str] = set()

    def put(self, ping: Ping) -> None:
        """Queue ``ping``; log it as dropped when the queue is full."""
        if not self._lookups.put(ping):
            report_dropped(1, "too many pings are queued")

    def close(self) -> None:
        """Send what is queued within CLOSE_TIMEOUT; log the rest as dropped."""
        deadline = time.monotonic() + CLOSE_TIMEOUT
        dropped = self._lookups.close(deadline=deadline)
        # A copy: a lookup that takes longer than the deadline can add a thread.
        threads = list(self._by_origin.values())
        dropped += sum(each.close(deadline=deadline) for each in threads)
        if dropped:
            report_dropped(dropped, "the worker ended")

    def _look_up(self, ping: Ping) -> None:
        try:
            request = self._request(ping)
        # A ping is never worth the end of its thread.
        except Exception as error:  # noqa: BLE001
            _log_failed(ping, _reason(error), level=logging.WARNING)
            return
        if request is not None and not self._queue_of(request.origin).put(request):
            report_dropped(1, f"too many pings to {request.origin} are queued")

    def _request(self, ping: Ping) -> PingRequest | None:
        url = self._database.read(partial(ping_urls.read, run_id=ping.run_id))
        if url is None:
            return None
        # Again after the check of the API: a row can be edited in SQL, and a setting changes.
        return ping_request(parse_ping_url(url, allowed=self._allowed), ping)

    def _queue_of(self, origin: str) -> QueueThread[PingRequest]:
        if origin not in self._by_origin:
            name = f"dynbeat-ping-{len(self._by_origin)}"
            self._by_origin[origin] = QueueThread(self._send, name=name, size=QUEUE_SIZE)
        return self._by_origin[origin]

    def _send(self, request: PingRequest) -> None:
        try:
            status = self._client.send(request)
            failure = None if 200 <= status < 300 else _status_reason(status)  # noqa: PLR2004
        except Exception as error:  # noqa: BLE001
            failure = _reason(error)
        if failure is None:
            self._failing.discard(request.origin)
            return
        # One warning for each outage of a server.
        level = logging.INFO if request.origin in self._failing else logging.WARNING
        self._failing.add(request.origin)
        _log_failed(request.ping, failure, origin=request.origin, level=level)


def report_dropped(count: int, reason: str, *, with_log: bool = True) -> None:
    """Send the signal that pings are not sent, and log it."""
    emit(events.PingsDropped(count=count, reason=reason))
    if not with_log:
        return
    logger.warning(
        "%s pings of runs dropped: %s",
        count,
        reason,
        extra={"event": Event.PING_DROPPED, "count": count, "reason": reason},
    )


def _log_failed(ping: Ping, reason: str, *, origin: str | None = None, level: int) -> None:
    logger.log(
        level,
        "ping %s of run %s%s failed: %s",
        ping.state,
        ping.run_id,
        "" if origin is None else f" to {origin}",
        reason,
        extra={
            "event": Event.PING_FAILED,
            "owner": ping.owner,
            "schedule": ping.schedule,
            "run_id": ping.run_id,
            "attempt": ping.attempt,
            "ping": str(ping.state),
            "host": origin,
            "reason": reason,
        },
    )


def _status_reason(status: int) -> str:
    redirects = 300 <= status < 400  # noqa: PLR2004
    return f"status {status}{' (redirects are not followed)' if redirects else ''}"


def _reason(error: Exception) -> str:
    """Return why a ping was not sent, without its URL."""
    if type(error) is ValueError:
        # Of parse_ping_url, whose messages show no path and no query.
        return str(error)
    cause = getattr(error, "reason", None)
    return type(cause if isinstance(cause, Exception) else error).__name__
