"""Report runs to Sentry Crons: one check-in per run, under the id of the run.

    the first attempt of a run starts     -> in_progress
    the run has ended                     -> ok if it succeeded, else error, with the same id
    beat or a worker finds the run lost   -> error, with the same id
    a retry, a refused message            -> nothing

The process that starts or ends a run reports this in a thread, so that a task waits neither for the
database nor for Sentry. A run that no worker starts is missing, and Sentry then reports it by the
schedule of the monitor. Sentry's own receivers for beat find no header of theirs in the messages of
this package, so they send nothing.
"""

import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any
from uuid import UUID
from weakref import WeakMethod

import sentry_sdk
from celery.signals import worker_process_shutdown
from sentry_sdk import crons

from celery_dynbeat.common.events import Event
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.engine import Database
from celery_dynbeat.process.queue_thread import QueueThread
from celery_dynbeat.store import runs, schedules
from celery_dynbeat.telemetry import events, subscribe, unsubscribe
from celery_dynbeat.triggers import parse_trigger
from celery_dynbeat.triggers.base import Trigger
from celery_dynbeat.triggers.cron.trigger import Cron
from celery_dynbeat.triggers.every import Every

logger = logging.getLogger(__name__)

#: Sentry's limit for the slug of a monitor.
MAX_SLUG_LENGTH = 50
#: Check-ins that wait for the thread.
QUEUE_SIZE = 1_000
#: Seconds for the queued check-ins at the end of a process.
CLOSE_TIMEOUT = 2.0
#: Five fields without the forms that only this package has, such as H, L, W, # and ?.
_PLAIN_CRON = re.compile(
    r"(?:[\d*,/-]+\s+){3}(?:(?i:[\d*,/-]|[a-z]{3})+)\s+(?:(?i:[\d*,/-]|[a-z]{3})+)"
)
_UNITS = (
    ("day", timedelta(days=1)),
    ("hour", timedelta(hours=1)),
    ("minute", timedelta(minutes=1)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CheckIn:
    """A check-in. If ``owner`` and ``schedule`` are None, they are read from the row of the run."""

    run_id: str
    owner: str | None
    schedule: str | None
    attempt: int | None
    status: str
    duration: timedelta | None = None


class SentryMonitors:
    """Sends the check-ins of one process, and of each process that is forked from it.

    ``patterns`` select schedules of the application itself (owner ``""``) by name.
    """

    def __init__(self, database: Database, *, patterns: Sequence[str]) -> None:
        self._database = database
        self._patterns = patterns
        self._start_queue()
        _after_fork(self._start_queue)

    def _start_queue(self) -> None:
        # The thread starts with the first check-in. A forked process has no thread of its parent.
        self._queue = QueueThread(self._send, name="dynbeat-sentry", size=QUEUE_SIZE)

    def connect(self) -> None:
        """Listen to the runs of this process."""
        for event_type, listener in self._listeners():
            # With a key: a beat in a worker process inherits the listeners of the worker.
            subscribe(listener, event_type, key=__name__, in_context=True)
        # Of a pool process, after its last task.
        worker_process_shutdown.connect(
            self._on_process_shutdown, weak=False, dispatch_uid=__name__
        )

    def close(self) -> None:
        """Stop listening, and send the queued check-ins for a short time."""
        for event_type, _ in self._listeners():
            unsubscribe(__name__, event_type)
        worker_process_shutdown.disconnect(dispatch_uid=__name__)
        self._flush()

    def _listeners(self) -> Sequence[tuple[type, Callable[[Any], None]]]:
        return (
            (events.RunStarted, self._on_started),
            (events.RunEnded, self._on_ended),
            (events.RunLost, self._on_lost),
        )

    def _on_started(self, event: events.RunStarted) -> None:
        if event.attempt == 1:
            self._put(event, status="in_progress")

    def _on_ended(self, event: events.RunEnded) -> None:
        if event.status != Status.RETRYING:
            is_ok = event.status in {Status.SUCCEEDED, Status.SKIPPED}
            status = "ok" if is_ok else "error"
            self._put(event, status=status, duration=event.duration)

    def _on_lost(self, event: events.RunLost) -> None:
        if not event.sent_again:
            self._put(event, status="error")

    def _on_process_shutdown(self, **_: Any) -> None:
        self._flush()

    def _put(
        self,
        event: events.RunStarted | events.RunEnded | events.RunLost,
        *,
        status: str,
        duration: timedelta | None = None,
    ) -> None:
        check_in = _CheckIn(
            run_id=event.run_id,
            owner=event.owner,
            schedule=event.schedule,
            attempt=event.attempt,
            status=status,
            duration=duration,
        )
        may_be_monitored = check_in.schedule is None or self._is_monitored(check_in)
        if may_be_monitored and not self._queue.put(check_in):
            _log_failed(check_in, "too many are queued")

    def _is_monitored(self, check_in: _CheckIn) -> bool:
        name = check_in.schedule or ""
        return check_in.owner == "" and any(fnmatchcase(name, each) for each in self._patterns)

    def _flush(self) -> None:
        deadline = time.monotonic() + CLOSE_TIMEOUT
        self._queue.close(deadline=deadline)
        sentry_sdk.flush(timeout=max(0, deadline - time.monotonic()))

    def _send(self, check_in: _CheckIn) -> None:
        try:
            self._capture(check_in)
        # A check-in is never worth the end of its thread.
        except Exception as error:  # noqa: BLE001
            _log_failed(check_in, type(error).__name__)

    def _capture(self, check_in: _CheckIn) -> None:
        named = self._named(check_in)
        # Read each time, so that an edit applies from the next check-in.
        config = self._monitor_config(named.schedule) if self._is_monitored(named) else None
        if config is not None:
            crons.capture_checkin(
                monitor_slug=slug_of(named.schedule or ""),
                check_in_id=UUID(named.run_id).hex,
                status=named.status,
                duration=None if named.duration is None else named.duration.total_seconds(),
                monitor_config=config,
            )

    def _named(self, check_in: _CheckIn) -> _CheckIn:
        if check_in.schedule is not None:
            return check_in
        run = self._database.read(lambda session: runs.get(session, run_id=check_in.run_id))
        return check_in if run is None else replace(check_in, owner=run.owner, schedule=run.name)

    def _monitor_config(self, name: str | None) -> Any:
        row = self._database.read(lambda session: schedules.get(session, owner="", name=name or ""))
        if row is None:
            return None
        trigger = parse_trigger(row.trigger_kind, row.trigger_spec, timezone=row.timezone)
        schedule = schedule_of(trigger)
        return None if schedule is None else {"schedule": schedule, "timezone": row.timezone}


def _after_fork(call: Callable[[], None]) -> None:
    """Call a method in each process that is forked from now on, as long as its object exists."""
    method = WeakMethod(call)

    def call_in_child() -> None:
        alive = method()
        if alive is not None:
            alive()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call_in_child)


def _log_failed(check_in: _CheckIn, reason: str) -> None:
    logger.warning(
        "check-in of run %s not sent: %s",
        check_in.run_id,
        reason,
        extra={
            "event": Event.CHECK_IN_FAILED,
            "owner": check_in.owner,
            "schedule": check_in.schedule,
            "run_id": check_in.run_id,
            "attempt": check_in.attempt,
            "status": check_in.status,
            "reason": reason,
        },
    )


def slug_of(name: str) -> str:
    """Return the slug of the monitor of a schedule."""
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower())[:MAX_SLUG_LENGTH]


def schedule_of(trigger: Trigger) -> dict[str, Any] | None:
    """Return the schedule of a Sentry monitor, or None for a trigger that Sentry cannot express."""
    if isinstance(trigger, Cron):
        is_plain = trigger.day_or and _PLAIN_CRON.fullmatch(trigger.expression)
        return {"type": "crontab", "value": trigger.expression} if is_plain else None
    if isinstance(trigger, Every) and trigger.interval is not None:
        for unit, length in _UNITS:
            count, rest = divmod(trigger.interval, length)
            if count and not rest:
                return {"type": "interval", "value": count, "unit": unit}
    return None
