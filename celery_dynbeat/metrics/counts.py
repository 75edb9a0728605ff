"""Counters and histograms in the memory of one process, in no registry of prometheus_client.

The application's default registry does not change. The classes Counter and Histogram of
prometheus_client are not used: with PROMETHEUS_MULTIPROC_DIR, which an application sets for its web
servers, they write to files. Beat would fail without that folder, and end by SIGBUS on a full disk.
"""

import threading
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.utils import INF, floatToGoString

from celery_dynbeat.metrics.definitions import Kind, Metric


class _Histogram:
    """The values of one series: their sum, and their number in each bucket."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.sum = (*bounds, INF), 0.0
        self.numbers = [0] * len(self.bounds)

    def observe(self, value: float) -> None:
        self.sum += value
        self.numbers[bisect_left(self.bounds, value)] += 1

    def cumulative(self) -> list[tuple[str, float]]:
        names = map(floatToGoString, self.bounds)
        return list(zip(names, accumulate(self.numbers), strict=True))


class ProcessCounts:
    """The counts of one process."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}
        self._totals: dict[str, dict[tuple[str, ...], float]] = {}
        self._histograms: dict[str, dict[tuple[str, ...], _Histogram]] = {}
        self._lock = threading.Lock()

    def add(self, metric: Metric, amount: float, *labels: str) -> None:
        """Add ``amount`` to a counter."""
        with self._lock:
            self._metrics[metric.name] = metric
            totals = self._totals.setdefault(metric.name, {})
            totals[labels] = totals.get(labels, 0.0) + amount

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Add one value to a histogram."""
        with self._lock:
            self._metrics[metric.name] = metric
            series = self._histograms.setdefault(metric.name, {})
            if labels not in series:
                series[labels] = _Histogram(metric.buckets)
            series[labels].observe(value)

    def collect(self) -> Iterable[Family]:
        """Return all series."""
        with self._lock:
            return [self._family(metric) for metric in self._metrics.values()]

    def _family(self, metric: Metric) -> Family:
        if metric.kind is Kind.COUNTER:
            counter = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, total in self._totals[metric.name].items():
                counter.add_metric(labels, total)
            return counter
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, values in self._histograms[metric.name].items():
            histogram.add_metric(labels, values.cumulative(), values.sum)
        return histogram
