"""Celery beat's adapter: what ``celery beat`` and ``celery worker -B`` call. It decides nothing.

    celery.beat.Service: while running: tick(); on SIGTERM: close(), SystemExit, close() again

``tick`` waits itself, because nothing can wake the Service's own sleep; so it returns 0. The first
``close`` runs inside the signal handler, perhaps in the middle of a query: it only asks
for the end.
"""

import gc
import logging
import os
import random
import socket
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from celery import Celery
from celery.beat import Scheduler
from celery.utils.log import LoggingProxy
from sqlalchemy.exc import SQLAlchemyError

from celery_dynbeat.beat import config_sync
from celery_dynbeat.beat.background import AtOnce, Beside
from celery_dynbeat.beat.dispatcher import Dispatcher
from celery_dynbeat.broker.publisher import Publisher
from celery_dynbeat.client import Context, dynbeat_of
from celery_dynbeat.common.errors import ConfigurationError, SchemaError
from celery_dynbeat.common.events import Event
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.runtime import application
from celery_dynbeat.runtime.heartbeat import HeartbeatWriter

if TYPE_CHECKING:
    from celery_dynbeat.notify import Listener

logger = logging.getLogger(__name__)

FIRST_BACKOFF = 0.2
#: Celery takes a beat for dead that has not returned from tick for a minute.
LONGEST_TICK = 20.0


class DatabaseScheduler(Scheduler):
    """Beat on a database: any number of them may run, none of them leads."""

    def __init__(self, app: Celery, *args: Any, lazy: bool = False, **kwargs: Any) -> None:
        self._context: Context = dynbeat_of(app).context
        self._wake = threading.Event()
        self._closing = False
        self._ticking = False
        self._failures = 0
        self._parts: _Parts | None = None
        super().__init__(app, *args, lazy=lazy, **kwargs)
        longest = self._context.settings.poll_interval.total_seconds()
        asked: float = self.max_interval
        self.max_interval: float = min(asked, longest, LONGEST_TICK)

    def setup_schedule(self) -> None:
        """Connect nothing: ``tick`` does, which outlives a database that is away."""
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

    def reached(self, point: str) -> None:
        """Do nothing; a test that wants a crash at ``point`` overrides it."""

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Make a pass, then wait for work, a change or the end; at most ``max_interval``.

        While passes fail it does not return: Celery answers ``inspect ping`` for a beat only as
        long as its ticks come to an end, and so the answer says that passes work.
        """
        del args, kwargs
        self._ticking = True
        try:
            self._wait(self._pass())
            # A beat in a thread of a worker is told of the end between two ticks only.
            while self._failures and threading.current_thread() is threading.main_thread():
                if self._closing:
                    break
                self._wait(self._pass())
        finally:
            self._ticking = False
        if self._closing:
            # Here at the latest: what the handler of SIGTERM raises is lost within a finalizer.
            raise SystemExit
        return 0

    def _wait(self, pause: timedelta) -> None:
        if self._closing or pause <= timedelta(0):
            return
        self._wake.wait(min(pause.total_seconds(), self.max_interval))
        # Asked once more: it may have come just behind the end of the wait.
        if not self._wake.is_set():
            return
        self._wake.clear()
        if self._parts is not None:
            self._parts.on_change()

    def _pass(self) -> timedelta:
        try:
            if self._parts is None:
                self._parts = _Parts(
                    self._context,
                    self._wake.set,
                    self.reached,
                    poll_interval=timedelta(seconds=self.max_interval),
                )
                if self._failures:
                    self._parts.note_outage()
            pause = self._parts.run()
        except (ConfigurationError, SchemaError):
            # Retrying cannot fix these errors. Raise, so that the supervisor reports them.
            _restore_stderr()
            raise
        # Beat outlives whatever befalls one pass: a database or a broker that is away, or a flaw.
        except Exception as error:  # noqa: BLE001
            return self._back_off(error)
        if self._failures:
            logger.info("beat works again", extra={"event": Event.PASS_RECOVERED})
        self._failures = 0
        return pause

    def _back_off(self, error: Exception) -> timedelta:
        longest = min(FIRST_BACKOFF * 2 ** min(self._failures, 12), self.max_interval)
        # Several beats that lost the same server should not come back as one.
        seconds = longest * random.uniform(0.5, 1)  # noqa: S311 - not a secret
        self._failures += 1
        logger.error(
            "pass failed, again in %.1f s: %s: %s",
            seconds,
            type(error).__name__,
            _first_line(error),
            exc_info=logger.isEnabledFor(logging.DEBUG),
            extra={"event": Event.PASS_FAILED},
        )
        return timedelta(seconds=seconds)

    def close(self) -> None:
        """Ask for the end; outside of a tick, also let everything go. May be called again."""
        self._closing = True
        if self._ticking:
            return
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.close()


def _restore_stderr() -> None:
    """Let Python print the traceback that ends beat.

    Celery's proxy for stderr makes a log record of each write, which can be a single character:
    500 lines for one traceback.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and sys.__stderr__ is not None and isinstance(sys.stderr, LoggingProxy):
        sys.stderr = sys.__stderr__


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


class _Parts:
    """What a running beat is made of. Made within the first pass, when the database answers."""

    def __init__(
        self,
        context: Context,
        wake: Callable[[], None],
        reached: Callable[[str], None],
        *,
        poll_interval: timedelta,
    ) -> None:
        context.prepare_tables()
        # First: a beat of another application must not touch the rows of beat_schedule.
        application.ensure_application(
            context.database, name=context.settings.application, now=context.clock.now
        )
        config_sync.sync(context)
        self._publisher = Publisher(context.app, now=context.clock.now)
        self._dispatcher = Dispatcher(
            database=context.database,
            publisher=self._publisher,
            clock=context.clock,
            settings=context.settings,
            reached=reached,
            beside=Beside() if context.database.supports_concurrent_writes else AtOnce(),
            poll_interval=poll_interval,
        )
        self._heartbeat = HeartbeatWriter(
            database=context.database,
            clock=context.clock,
            kind=NodeKind.BEAT,
            name=f"celerybeat@{socket.gethostname()}:{os.getpid()}",
            timeout=context.settings.node_timeout,
        )
        self._listener: Listener = context.notifier.listener(wake)
        self._listener.start()
        self._is_loaded = False
        logger.info("beat started", extra={"event": Event.BEAT_STARTED})

    def note_outage(self) -> None:
        self._dispatcher.note_outage()

    def on_change(self) -> None:
        self._dispatcher.on_change()

    def run(self) -> timedelta:
        try:
            pause = self._dispatcher.run_pass()
        except SQLAlchemyError:
            # Nor could that be written.
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {_first_line(error)}"
            self._beat(error=text)
            raise
        self._heartbeat.note_progress()
        self._beat()
        if not self._is_loaded:
            self._is_loaded = True
            # What a whole pass needs is here to stay: else a burst looks for garbage in it again
            # and again, for a tenth of its time ("gc.freeze"). No collection before: a SIGTERM that
            # strikes within one is lost when it meets a finalizer.
            gc.freeze()
        return pause

    def _beat(self, *, error: str | None = None) -> None:
        outages = self._publisher.outages.report()
        self._heartbeat.beat(error=error, notifier=self._listener.transport, outages=outages)

    def close(self) -> None:
        self._listener.stop()
        self._publisher.close()
        self._dispatcher.close()
        self._heartbeat.deregister()
        logger.info("beat stopped", extra={"event": Event.BEAT_STOPPED})
