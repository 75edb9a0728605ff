"""Counters and histograms in the memory of one process, in no registry of prometheus_client.

The application's own default registry stays as it is.
"""

import threading
from collections.abc import Iterable
from typing import Protocol

from prometheus_client import Counter, Histogram
from prometheus_client import Metric as Family

from celery_dynbeat.monitoring.metrics.definitions import Kind, Metric


class Counts(Protocol):
    """What a process has counted. A collector for a registry of prometheus_client."""

    def add(self, metric: Metric, amount: float, *labels: str) -> None:
        """Add ``amount`` to a counter. ``labels`` are the values of its labels, in order."""

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Add one value to a histogram."""

    def collect(self) -> Iterable[Family]:
        """Return all series."""

    def close(self) -> None:
        """Release the files. Nothing may be added any more."""


class ProcessCounts:
    """The counts of one process."""

    def __init__(self) -> None:
        self._metrics: dict[str, Counter | Histogram] = {}
        self._lock = threading.Lock()

    def add(self, metric: Metric, amount: float, *labels: str) -> None:
        """Add ``amount`` to a counter."""
        counter = self._metric(metric)
        (counter.labels(*labels) if labels else counter).inc(amount)  # type: ignore[union-attr]

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Add one value to a histogram."""
        histogram = self._metric(metric)
        (histogram.labels(*labels) if labels else histogram).observe(value)  # type: ignore[union-attr]

    def _metric(self, metric: Metric) -> Counter | Histogram:
        with self._lock:
            if metric.name not in self._metrics:
                self._metrics[metric.name] = _new(metric)
            return self._metrics[metric.name]

    def collect(self) -> Iterable[Family]:
        """Return all series."""
        with self._lock:
            metrics = list(self._metrics.values())
        for metric in metrics:
            for family in metric.collect():
                # The time of creation doubles the number of series, and no rule needs it.
                family.samples = [
                    each for each in family.samples if not each.name.endswith("_created")
                ]
                yield family

    def close(self) -> None:
        """Do nothing: there are no files."""


def _new(metric: Metric) -> Counter | Histogram:
    if metric.kind is Kind.COUNTER:
        return Counter(metric.name, metric.help, metric.labels, registry=None)
    return Histogram(metric.name, metric.help, metric.labels, registry=None, buckets=metric.buckets)
