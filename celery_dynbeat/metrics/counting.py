"""Count the events of beat, in the memory of the process and in no registry of prometheus_client.

The application's default registry does not change. The classes Counter and Histogram of
prometheus_client are not used: with PROMETHEUS_MULTIPROC_DIR, which an application sets for its web
servers, they write to files. Beat would fail without that folder, and end by SIGBUS on a full disk.
"""

import logging
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

from prometheus_client import Metric as Family
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.utils import INF, floatToGoString
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.engine import Engine, ExceptionContext

from celery_dynbeat.common.events import Event
from celery_dynbeat.metrics.definitions import (
    BEAT_METRICS,
    DATABASE_ERRORS,
    EVENT_METRICS,
    OTHER,
    UNKNOWN,
    Distribution,
    EventMetric,
    Metric,
    MetricKind,
    Series,
)
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
                logger.error(  # noqa: TRY400 - without the traceback
                    "metrics are incomplete: an event was not counted: %s: %s",
                    type(error).__name__,
                    error,
                    extra={"event": Event.METRICS_FAILED},
                )
