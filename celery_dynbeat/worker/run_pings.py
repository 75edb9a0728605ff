"""Report starts and ends of runs to the ping URLs of their schedules.

The main process of the worker sends all pings. A pool process only passes them to it, without
waiting: so the exit or the kill of a pool process loses no ping, and no task waits for a server.

    pool process:  guard, recorder --channel--> main process: PingSender
    other pools:   guard, recorder -----------------------^

    start      the first attempt of a run was started
    success    the recorder has written that the run succeeded
    fail       the recorder has written that the run failed. A retry is no failure

While the database is unreachable, the outcome waits in the buffer of the recorder, and so does the
ping. A run that is lost, revoked or expired sends nothing: its monitor reports that success is
missing.
"""

import threading
from collections.abc import Collection
from typing import Any

from celery_dynbeat.broker.headers import schedule_of, wants_pings
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.runtime.context import Context
from celery_dynbeat.worker.outcome_recorder import Outcome
from celery_dynbeat.worker.ping_requests import Ping, PingState
from celery_dynbeat.worker.ping_sender import PingSender, report_dropped
from celery_dynbeat.worker.pool_channel import PoolChannel

_STATES = {Status.SUCCEEDED: PingState.SUCCESS, Status.FAILED: PingState.FAIL}


class RunPings:
    """The pings of one worker node. Its pool processes inherit it when they are forked.

    ``channel`` None: the node has no pool processes.
    """

    def __init__(
        self,
        context: Context,
        *,
        allowed: Collection[str],
        channel: PoolChannel[Ping] | None = None,
    ) -> None:
        self._sender = PingSender(context.database, allowed=allowed)
        self._channel = channel
        self._is_pool_process = False
        # A pool process logs the first ping of a series that the main process does not take.
        self._is_dropping = False
        self._thread: threading.Thread | None = None

    def report_start(self, request: Any, run_id: str, attempt: int | None) -> None:
        """Report that the guard started an attempt of a run."""
        if attempt == 1 and wants_pings(request):
            owner, schedule = schedule_of(request)
            start = PingState.START
            self._put(Ping(run_id, start, owner=owner, schedule=schedule, attempt=attempt))

    def report_end(self, outcome: Outcome) -> None:
        """Report the end of a run, after the recorder has written it."""
        state = _STATES.get(outcome.status)
        if state is not None:
            self._put(_ping(outcome, state))

    def _put(self, ping: Ping) -> None:
        if not self._is_pool_process or self._channel is None:
            self._sender.put(ping)
            return
        is_taken = self._channel.send(ping)
        if not is_taken:
            reason = "the main process of the worker does not take them"
            report_dropped(1, reason, with_log=not self._is_dropping)
        self._is_dropping = not is_taken

    def enter_pool_process(self) -> None:
        """Pass the pings to the main process from now on."""
        self._is_pool_process = True
        if self._channel is not None:
            self._channel.close_receiver()

    def start(self) -> None:
        """Start the thread that receives the pings of pool processes."""
        if self._channel is not None:
            self._thread = threading.Thread(
                target=self._receive,
                args=(self._channel,),
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
        if self._channel is not None:
            self._channel.stop_waiting()
            if self._thread is not None:
                self._thread.join()
            self._send_received(self._channel)
            self._channel.close()
            self._channel = None
        self._sender.close()


def _ping(outcome: Outcome, state: PingState) -> Ping:
    subject = outcome.subject
    return Ping(
        outcome.run_id,
        state,
        _error_type(outcome),
        owner=subject.owner,
        schedule=subject.schedule,
        attempt=outcome.logged_attempt,
    )


def _error_type(outcome: Outcome) -> str | None:
    """Return the name of the exception type, which the error of a failed run begins with."""
    name = (outcome.error or "").partition(":")[0]
    return name if outcome.status == Status.FAILED and name.isidentifier() else None
