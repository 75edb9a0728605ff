"""The metrics of a beat: its counts, the gauges of the database, and the endpoint.

Events are counted in the memory of the process and in no registry of prometheus_client, so the
application's default registry does not change. The classes Counter and Histogram of
prometheus_client are not used: with PROMETHEUS_MULTIPROC_DIR, which an application sets for its web
servers, they write to files. Beat would fail without that folder, and end by SIGBUS on a full disk.

The metrics of the whole installation are read from the database at a scrape. One read serves all
scrapes within MAX_AGE seconds. Each query reads a bounded number of rows. If the database does not
answer within TIMEOUT seconds, the gauges are absent and ``dynbeat_database_scrape_success`` is 0.
The other metrics do not wait for longer.
"""

import logging
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from itertools import accumulate
from threading import Thread
from typing import Any, Generic, TypeVar
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client import Metric as Family
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import INF, floatToGoString
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.engine import Engine, ExceptionContext
from sqlalchemy.orm import Session

from celery_dynbeat.common.clock import DatabaseClock
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.settings import MetricsEndpoint
from celery_dynbeat.db.engine import reason_of
from celery_dynbeat.health.nodes import Limits
from celery_dynbeat.metrics.definitions import (
    BEAT_METRICS,
    CLOCK_OFFSET,
    DATABASE_ERRORS,
    EVENT_METRICS,
    LAST_PASS,
    OTHER,
    READ_METRICS,
    SCRAPE_SUCCESS,
    UNKNOWN,
    Distribution,
    EventMetric,
    Metric,
    MetricKind,
    Reading,
    Series,
)
from celery_dynbeat.process.context import Context
from celery_dynbeat.process.daemon_call import call_in_thread
from celery_dynbeat.store import health, places, rollups
from celery_dynbeat.telemetry import events, subscribe, unsubscribe

logger = logging.getLogger(__name__)

#: Values of one label in one process. Each further value is counted as OTHER.
MAX_VALUES = 500


def family(metric: Metric, series: Series | float) -> Family:
    """Return a metric for a collector. A number is the value of a metric without labels."""
    values: Series = {(): series} if isinstance(series, int | float) else series
    if metric.kind is MetricKind.HISTOGRAM:
        histogram = HistogramMetricFamily(metric.full_name, metric.help, labels=metric.labels)
        bounds = [*map(floatToGoString, (*metric.buckets, INF))]
        for labels, each in values.items():
            histogram.add_metric(labels, [*zip(bounds, each.numbers, strict=True)], each.sum)
        return histogram
    kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    plain = kind(metric.full_name, metric.help, labels=metric.labels)
    for labels, each in values.items():
        plain.add_metric(labels, each)
    return plain


class ProcessCounts:
    """The counts of one process, as a collector. ``connect`` listens to the events to count."""

    def __init__(self) -> None:
        self._totals: defaultdict[Metric, dict[tuple[str, ...], float]] = defaultdict(dict)
        self._numbers: defaultdict[Metric, dict[tuple[str, ...], list[int]]] = defaultdict(dict)
        self._seen: defaultdict[str, set[str]] = defaultdict(set)
        self._lock = threading.Lock()
        self._has_failed = False
        self._engine: Engine | None = None
        self.last_pass_at = time.monotonic()
        self._connected = [(each.event, self._receiver(each)) for each in EVENT_METRICS]
        self._connected.append((events.PassEnded, self._note_pass))

    def add(self, metric: Metric, value: float, *labels: str | None) -> None:
        """Add ``value`` to a counter, or observe it in a histogram."""
        with self._lock:
            key = tuple(map(self._bounded, metric.labels, labels))
            totals = self._totals[metric]
            totals[key] = totals.get(key, 0.0) + value
            if metric.buckets:
                numbers = self._numbers[metric].setdefault(key, [0] * (len(metric.buckets) + 1))
                numbers[bisect_left(metric.buckets, value)] += 1

    def _bounded(self, label: str, value: str | None) -> str:
        """Return ``value``, UNKNOWN if it is empty, or OTHER if there are too many values."""
        seen = self._seen[label]
        if value and value not in seen and len(seen) >= MAX_VALUES:
            return OTHER
        seen.add(value or UNKNOWN)
        return value or UNKNOWN

    def collect(self) -> Iterable[Family]:
        """Return all series."""
        with self._lock:
            return [family(metric, self._series(metric)) for metric in self._totals]

    def _series(self, metric: Metric) -> Series:
        totals = self._totals[metric]
        if not metric.buckets:
            return totals
        numbers = self._numbers[metric]
        return {key: Distribution([*accumulate(numbers[key])], totals[key]) for key in totals}

    def connect(self, engine: Engine | None = None) -> None:
        """Listen to the events of this process, and to the errors of ``engine``."""
        # Export the counters without labels from the start: increase() then sees the first event.
        for metric in BEAT_METRICS:
            if metric.kind is MetricKind.COUNTER and not metric.labels:
                self.add(metric, 0)
        for event_type, listener in self._connected:
            subscribe(listener, event_type)
        if engine is not None:
            self._engine = engine
            sqlalchemy_event.listen(engine, "handle_error", self._on_database_error)

    def disconnect(self) -> None:
        """Count nothing more."""
        for event_type, listener in self._connected:
            unsubscribe(listener, event_type)
        engine, self._engine = self._engine, None
        if engine is not None:
            sqlalchemy_event.remove(engine, "handle_error", self._on_database_error)

    def _receiver(self, metric: EventMetric) -> Callable[[Any], None]:
        return lambda event: self._add(metric, lambda: metric.values(event))

    def _note_pass(self, event: events.PassEnded) -> None:
        if event.error is None:
            self.last_pass_at = time.monotonic()

    def _on_database_error(self, context: ExceptionContext) -> None:
        error = context.sqlalchemy_exception or context.original_exception
        self._add(DATABASE_ERRORS, lambda: [(1, type(error).__name__)])

    def _add(self, metric: Metric, values: Callable[[], Iterable[tuple[Any, ...]]]) -> None:
        try:
            for value in values():
                self.add(metric, *value)
        # The error may come with each run: log the first one only.
        except Exception as error:  # noqa: BLE001
            if not self._has_failed:
                self._has_failed = True
                logger.warning(
                    "metrics are incomplete: an event was not counted: %s: %s",
                    type(error).__name__,
                    error,
                    extra={"event": Event.METRICS_FAILED},
                )


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


class BeatMetrics:
    """The metrics of a beat. The constructor starts to count and opens the endpoint.

    ``port`` is None if the port could not be opened. The beat then works without an endpoint.
    """

    def __init__(self, context: Context, endpoint: MetricsEndpoint) -> None:
        self._clock = context.clock
        self._counts = ProcessCounts()
        self._counts.connect(context.database.engine)
        collectors: list[Collector] = [self._counts, self, DatabaseGauges(context)]
        self._server = _serve(collectors, endpoint)
        self.port = None if self._server is None else self._server[0].server_port

    def collect(self) -> Iterable[Family]:
        """Return the gauges of this process. They need no query."""
        yield family(LAST_PASS, time.monotonic() - self._counts.last_pass_at)
        # The last reading of the database's clock. Before the first, there is no gauge.
        offset = self._clock.offset() if isinstance(self._clock, DatabaseClock) else None
        if offset is not None:
            yield family(CLOCK_OFFSET, offset.total_seconds())

    def close(self) -> None:
        """Count nothing more, and free the port."""
        self._counts.disconnect()
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join()


def _serve(
    collectors: Iterable[Collector], endpoint: MetricsEndpoint
) -> tuple[WSGIServer, Thread] | None:
    """Serve ``collectors``; return None, with a log record, if the port is in use."""
    port, address = endpoint
    # Apart from the default registry of the application.
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    try:
        server, thread = start_http_server(port, address, registry)
    except OSError as error:
        logger.error(  # noqa: TRY400 - beat works without the endpoint
            "metrics are not exported: %s (address %s, port %s): give each beat its own port"
            " (DYNBEAT_METRICS)",
            error,
            address,
            port,
            extra={"event": Event.METRICS_UNAVAILABLE},
        )
        return None
    logger.info(
        "metrics exported on http://%s:%s/metrics",
        f"[{address}]" if ":" in address else address,
        server.server_port,
        extra={"event": Event.METRICS_EXPORTED, "port": server.server_port},
    )
    return server, thread
