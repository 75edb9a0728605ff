"""A listener of events that reports starts and ends of runs to the ping URLs of their schedules.

The main process of the worker sends all pings. A pool process only passes them to it, without
waiting. The end of a pool process therefore loses no ping, and no task waits for a server.

    pool process:  RunStarted, RunEnded --channel--> main process: PingSender
    other pools:   RunStarted, RunEnded -----------------------^

    start      the first attempt of a run was started
    success    the recorder has written that the run succeeded
    fail       the recorder has written that the run failed. A retry is not a failure

While the database is unreachable, the outcome waits in the buffer of the recorder, and so does the
ping. A run that is lost, revoked or expired sends nothing, so its monitor reports the missing
success.

The sender looks up the URLs and sends the pings in threads:

    put -> [queue] -> lookup thread: one query, the checks -> [queue of the origin] -> its thread

Each origin has a separate thread and queue, so a server that never replies delays only its own
pings. The queues are bounded, and so is the number of threads, by dynbeat_ping_hosts. The pings of
a run keep their order. Nothing is sent again: monitors of this kind report a ping that is missing.
"""

import threading
import time
from collections.abc import Collection
from functools import partial
from typing import Any

from celery import signals

from celery_dynbeat.common.ping_urls import parse_ping_url
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.engine import Database
from celery_dynbeat.process.context import Context
from celery_dynbeat.process.queue_thread import QueueThread
from celery_dynbeat.store import runs
from celery_dynbeat.telemetry import emit, events, subscribe, unsubscribe
from celery_dynbeat.worker import PoolChannel
from celery_dynbeat.worker.ping_client import (
    Ping,
    PingClient,
    PingRequest,
    PingState,
    ping_request,
)

#: Pings in each queue.
QUEUE_SIZE = 1_000
#: Seconds for one request.
TIMEOUT = 5.0
#: Seconds for the queued pings at the end of the worker.
CLOSE_TIMEOUT = 2.0
# A run that its task skipped ended as it should.
_STATES = {
    Status.SUCCEEDED.value: PingState.SUCCESS,
    Status.SKIPPED.value: PingState.SUCCESS,
    Status.FAILED.value: PingState.FAIL,
}


class RunPings:
    """The pings of one worker node. Its pool processes inherit it when they are forked.

    ``channel`` is None if the node has no pool processes.
    """

    def __init__(
        self,
        context: Context,
        *,
        allowed: Collection[str],
        channel: PoolChannel[Ping] | None = None,
    ) -> None:
        self._sender = PingSender(context.database, allowed=allowed)
        self.channel = channel
        self._is_pool_process = False
        # Whether the main process did not take the last ping of this pool process.
        self._is_dropping = False
        self._thread: threading.Thread | None = None

    def connect(self) -> None:
        """Listen to the events of this process, and of the processes that it forks."""
        subscribe(self.on_started, events.RunStarted)
        subscribe(self.on_ended, events.RunEnded)
        signals.worker_process_init.connect(self.on_process_init, weak=False)

    def on_started(self, event: events.RunStarted) -> None:
        """Report that the guard started the first attempt of a run."""
        if event.attempt == 1 and event.pings:
            self._put(
                Ping(
                    event.run_id,
                    PingState.START,
                    owner=event.owner,
                    schedule=event.schedule,
                    attempt=event.attempt,
                )
            )

    def on_ended(self, event: events.RunEnded) -> None:
        """Report the end of a run."""
        state = _STATES.get(event.status)
        if state is not None and event.pings:
            self._put(
                Ping(
                    event.run_id,
                    state,
                    _error_type(event),
                    owner=event.owner,
                    schedule=event.schedule,
                    attempt=event.attempt,
                )
            )

    def _put(self, ping: Ping) -> None:
        # The end of a run that a pool process executed must not overtake its start.
        is_taken = self.channel is not None and self.channel.send(ping)
        if not self._is_pool_process:
            if not is_taken:
                self._sender.put(ping)
            return
        if not is_taken:
            reason = "the main process of the worker does not take them"
            _report_dropped(1, reason, repeated=self._is_dropping)
        self._is_dropping = not is_taken

    def on_process_init(self, **_: Any) -> None:
        """Receive worker_process_init: pass the pings to the main process from now on."""
        self._is_pool_process = True
        if self.channel is not None:
            self.channel.close_receiver()

    def start(self) -> None:
        """Start the thread that receives the pings of pool processes."""
        if self.channel is not None:
            self._thread = threading.Thread(
                target=self._receive,
                args=(self.channel,),
                name="dynbeat-ping-channel",
                daemon=True,
            )
            self._thread.start()

    def _receive(self, channel: PoolChannel[Ping]) -> None:
        while channel.wait():
            self._send_received(channel)

    def _send_received(self, channel: PoolChannel[Ping]) -> None:
        for ping in channel.receive():
            self._sender.put(ping)

    def close(self) -> None:
        """Send the queued pings of this process and of its pool processes, for a short time."""
        unsubscribe(self.on_started, events.RunStarted)
        unsubscribe(self.on_ended, events.RunEnded)
        signals.worker_process_init.disconnect(self.on_process_init)
        if self.channel is not None:
            self.channel.stop_waiting()
            if self._thread is not None:
                self._thread.join()
            self._send_received(self.channel)
            self.channel.close()
            self.channel = None
        self._sender.close()


def _error_type(event: events.RunEnded) -> str | None:
    """Return the name of the exception type, which the error of a failed run begins with."""
    name = (event.error or "").partition(":")[0]
    return name if event.status == Status.FAILED and name.isidentifier() else None


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
        """Queue ``ping``, or drop it if the queue is full."""
        if not self._lookups.put(ping):
            _report_dropped(1, "too many pings are queued")

    def close(self) -> None:
        """Send what is queued within CLOSE_TIMEOUT; drop the rest."""
        deadline = time.monotonic() + CLOSE_TIMEOUT
        dropped = self._lookups.close(deadline=deadline)
        # Iterate over a copy, because a lookup that takes longer than the deadline can add a
        # thread.
        threads = list(self._by_origin.values())
        dropped += sum(each.close(deadline=deadline) for each in threads)
        if dropped:
            _report_dropped(dropped, "the worker ended")

    def _look_up(self, ping: Ping) -> None:
        try:
            request = self._request(ping)
        # A ping is never worth the end of its thread.
        except Exception as error:  # noqa: BLE001
            _report_failed(ping, _reason(error))
            return
        if request is not None and not self._queue_of(request.origin).put(request):
            _report_dropped(1, f"too many pings to {request.origin} are queued")

    def _request(self, ping: Ping) -> PingRequest | None:
        url = self._database.read(partial(runs.ping_url, run_id=ping.run_id))
        if url is None:
            return None
        # Checked again after the check of the API, because a row can be edited in SQL, and a
        # setting can change.
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
        repeated = request.origin in self._failing
        self._failing.add(request.origin)
        _report_failed(request.ping, failure, origin=request.origin, repeated=repeated)


def _report_dropped(count: int, reason: str, *, repeated: bool = False) -> None:
    emit(events.PingsDropped(count=count, reason=reason, repeated=repeated))


def _report_failed(
    ping: Ping, reason: str, *, origin: str | None = None, repeated: bool = False
) -> None:
    emit(
        events.PingFailed(
            run_id=ping.run_id,
            owner=ping.owner,
            schedule=ping.schedule,
            attempt=ping.attempt,
            ping=str(ping.state),
            host=origin,
            reason=reason,
            repeated=repeated,
        )
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
