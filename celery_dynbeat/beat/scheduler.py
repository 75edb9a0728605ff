"""Celery's adapter: ``celery beat`` and ``celery worker -B`` call it. It makes no decisions.

    celery.beat.Service: while running: tick(); on SIGTERM: close(), SystemExit, close() again

- ``tick`` waits itself and returns 0: nothing can wake the sleep of the Service.
- The first ``close`` runs inside the signal handler, perhaps during a query. It only sets a flag.
- A pass that fails is repeated after a back-off. A configuration error ends beat.
"""

import logging
import sys
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from celery import Celery
from celery.beat import Scheduler
from celery.utils.log import LoggingProxy
from sqlalchemy.exc import SQLAlchemyError

from celery_dynbeat.api import dynbeat_of
from celery_dynbeat.beat.runtime import BeatRuntime
from celery_dynbeat.broker.connection import BrokerConnection
from celery_dynbeat.broker.refusals import error_summary
from celery_dynbeat.common.clock import BackOff
from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.common.settings import metrics_in_force
from celery_dynbeat.telemetry import emit, events, has_listeners

if TYPE_CHECKING:
    from celery_dynbeat.metrics.exporting import BeatMetrics
    from celery_dynbeat.process.context import Context

logger = logging.getLogger(__name__)

FIRST_BACK_OFF = 0.2
#: Celery considers a beat dead that has not returned from ``tick`` for a minute.
MAX_TICK = 20.0


class DatabaseScheduler(Scheduler):
    """A Celery beat scheduler whose schedules are in a database. Any number of beats may run."""

    def __init__(self, app: Celery, *args: Any, lazy: bool = False, **kwargs: Any) -> None:
        self._context: Context = dynbeat_of(app).context
        self._wake = threading.Event()
        self._is_closing = False
        self._is_ticking = False
        self._runtime: BeatRuntime | None = None
        self._metrics: BeatMetrics | None = None
        self._has_started = False
        # Celery's banner also needs the transport, and would not say what to install.
        BrokerConnection(app)
        super().__init__(app, *args, lazy=lazy, **kwargs)
        poll_interval = self._context.settings.poll_interval.total_seconds()
        max_interval: float = self.max_interval
        self.max_interval: float = min(max_interval, poll_interval, MAX_TICK)
        # Jitter: beats that lost the same server must not reconnect at the same instant.
        self._back_off = BackOff(first=FIRST_BACK_OFF, maximum=self.max_interval, jitter=0.5)

    def setup_schedule(self) -> None:
        """Log the database. ``tick`` connects to it, and retries while it is unreachable."""
        logger.debug("database %s", self._context.database.shown_url)

    @property
    def info(self) -> str:
        """The lines that the banner shows."""
        settings = self._context.settings
        return (
            f"    . database -> {self._context.database.shown_url}\n"
            f"    . notifier -> {type(self._context.notifier).__name__}"
            f" (polls every {settings.poll_interval.total_seconds():g}s)"
        )

    def failpoint(self, point: str) -> None:
        """Do nothing. A test overrides it to crash at ``point``."""

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Make a pass, then wait for work, a notification or the end; at most ``max_interval``.

        It does not return while passes fail. Celery answers ``inspect ping`` only while ticks
        return, so the answer means that passes succeed.
        """
        del args, kwargs
        self._is_ticking = True
        try:
            self._wait(self._pass())
            # In a thread of a worker, beat can only be stopped between two ticks.
            while self._back_off.failures and threading.current_thread() is threading.main_thread():
                if self._is_closing:
                    break
                self._wait(self._pass())
        finally:
            self._is_ticking = False
        if self._is_closing:
            # The SystemExit of the signal handler is lost if it is raised inside a finalizer.
            raise SystemExit
        return 0

    def _wait(self, pause: timedelta) -> None:
        if self._is_closing or pause <= timedelta(0):
            return
        self._wake.wait(min(pause.total_seconds(), self.max_interval))
        # The result of wait() is not used, because the event may be set just after the timeout.
        if not self._wake.is_set():
            return
        self._wake.clear()
        if has_listeners(events.NotificationReceived):
            emit(events.NotificationReceived())
        if self._runtime is not None:
            self._runtime.dispatcher.on_change()

    def _pass(self) -> timedelta:
        began = time.monotonic()
        try:
            self._start_once()
            pause = self._started_runtime().run_pass()
        except ConfigurationError:
            # Retrying cannot fix these errors. Raise, so that the supervisor reports them.
            _restore_stderr()
            raise
        # Keep running after any error: log it and back off.
        except Exception as error:  # noqa: BLE001
            retry_seconds = self._back_off.next_delay()
            _emit_ended(began, error, retry_seconds)
            return timedelta(seconds=retry_seconds)
        _emit_ended(began)
        if self._back_off.failures and has_listeners(events.PassRecovered):
            emit(events.PassRecovered(failures=self._back_off.failures))
        self._back_off.reset()
        return pause

    def _start_once(self) -> None:
        """Start to count at the first pass: metrics must also show a beat without a database."""
        if self._has_started:
            return
        endpoint = metrics_in_force(self._context.settings.metrics)
        if endpoint is not None:
            # A late import: without the setting, beat has no metrics.
            from celery_dynbeat import metrics  # noqa: PLC0415

            self._metrics = metrics.start_beat(self._context, endpoint)
        self._has_started = True

    def _started_runtime(self) -> BeatRuntime:
        if self._runtime is None:
            self._runtime = BeatRuntime(
                self._context,
                wake=self._wake.set,
                failpoint=self.failpoint,
                poll_interval=timedelta(seconds=self.max_interval),
            )
            if self._back_off.failures:
                self._runtime.dispatcher.note_outage()
        return self._runtime

    def close(self) -> None:
        """Ask the running tick to end. Outside of a tick, close everything. May be called twice."""
        self._is_closing = True
        if self._is_ticking:
            return
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            runtime.close()
        metrics, self._metrics = self._metrics, None
        if metrics is not None:
            metrics.close()


def _emit_ended(
    began: float, error: Exception | None = None, retry_seconds: float | None = None
) -> None:
    """Report a pass that began at ``began`` of the monotonic clock."""
    if has_listeners(events.PassEnded):
        event = events.PassEnded(
            duration=timedelta(seconds=time.monotonic() - began),
            error=None if error is None else type(error).__name__,
            is_database_error=isinstance(error, SQLAlchemyError),
            reason=None if error is None else error_summary(error),
            retry_seconds=retry_seconds,
            exception=error,
        )
        emit(event)


def _restore_stderr() -> None:
    """Let Python print the traceback that ends beat.

    Celery's proxy of stderr logs each write, which can be a single character: 500 lines for one
    traceback.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and sys.__stderr__ is not None and isinstance(sys.stderr, LoggingProxy):
        sys.stderr = sys.__stderr__
