"""The metrics of the whole installation, read from the database at a scrape.

One read serves all scrapes within MAX_AGE seconds. Each query reads a bounded number of rows. If
the database does not answer within TIMEOUT seconds, the gauges are absent and
``dynbeat_database_scrape_success`` is 0. The other metrics do not wait for longer.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

from prometheus_client import Metric as Family
from sqlalchemy.orm import Session

from celery_dynbeat.common.events import Event
from celery_dynbeat.db.engine import reason_of
from celery_dynbeat.health.nodes import Limits
from celery_dynbeat.metrics.counting import MAX_VALUES, family
from celery_dynbeat.metrics.definitions import READ_METRICS, SCRAPE_SUCCESS, Reading
from celery_dynbeat.process.context import Context
from celery_dynbeat.process.daemon_call import call_in_thread
from celery_dynbeat.store import health, places, rollups

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds. Prometheus gives a scrape ten seconds by default.
TIMEOUT = 3.0
MAX_AGE = 5.0


class CachedCall(Generic[T]):
    """Calls ``call`` in a daemon thread, one at a time and at most once per ``max_age`` seconds.

    A caller waits until ``timeout`` seconds after the start of the call, so the callers of a call
    that hangs do not wait at all. The call does not block the exit either.
    """

    def __init__(self, call: Callable[[], T], *, timeout: float, max_age: float) -> None:
        self._call, self._timeout, self._max_age = call, timeout, max_age
        self._lock = threading.Lock()
        self._future: Future[T] | None = None
        self._started_at = self._ended_at = 0.0

    def result(self) -> T | None:
        """Return the result, or None if the call failed or does not end in time."""
        future = self._current()
        wait([future], timeout=max(self._started_at + self._timeout - time.monotonic(), 0.0))
        if not future.done() or future.exception() is not None:
            return None
        return future.result()

    def _current(self) -> Future[T]:
        with self._lock:
            if self._future is None or (self._future.done() and self._is_old()):
                self._started_at = time.monotonic()
                self._future = call_in_thread(self._timed, name="dynbeat-metrics-read")
            return self._future

    def _is_old(self) -> bool:
        return time.monotonic() - self._ended_at >= self._max_age

    def _timed(self) -> T:
        try:
            return self._call()
        finally:
            self._ended_at = time.monotonic()


class DatabaseGauges:
    """The metrics of the database, as a collector for a registry of prometheus_client."""

    def __init__(
        self, context: Context, *, timeout: float = TIMEOUT, max_age: float = MAX_AGE
    ) -> None:
        self._context = context
        self._reading = CachedCall(self._read, timeout=timeout, max_age=max_age)
        self._was_readable = True

    def collect(self) -> Iterable[Family]:
        """Return the metrics. Reads the database if the last reading is too old."""
        reading = self._reading.result()
        yield family(SCRAPE_SUCCESS, float(reading is not None))
        if reading is not None:
            for metric in READ_METRICS:
                value = metric.value(reading)
                if value is not None:
                    yield family(metric, value)

    def _read(self) -> Reading | None:
        started = time.monotonic()
        try:
            now, settings = self._context.clock.now(), self._context.settings
            limits, may_wait = Limits.of(settings), settings.owner_limits.may_cap_runs

            def work(session: Session) -> Reading:
                return Reading(
                    tables=health.read(session, now=now, nodes_since=limits.nodes_since(now)),
                    limits=limits,
                    oldest_pending_at=health.unstarted_runs(session).oldest_at,
                    waiting_runs=places.count_waiting(session) if may_wait else None,
                    totals=rollups.totals(session, limit=MAX_VALUES),
                    now=now,
                    duration=time.monotonic() - started,
                )

            reading = self._context.database.read_in_transaction(work)
        # Drivers raise errors of many classes. The metric reports the failure.
        except Exception as error:  # noqa: BLE001
            # Log this once per outage, because a scrape comes every few seconds.
            if self._was_readable:
                self._was_readable = False
                logger.warning(
                    "metrics of the database not read: %s",
                    reason_of(error),
                    extra={"event": Event.METRICS_FAILED},
                )
            return None
        self._was_readable = True
        return reading
