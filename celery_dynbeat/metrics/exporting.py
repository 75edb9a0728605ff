"""Export the metrics of a beat or a worker while it runs.

worker: created before the pool forks -> the pool processes inherit receivers and counts.
        A spawned process creates its receivers, and opens the counts by their folder
        started after it              -> the endpoint, in the main process only
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from celery import Celery, signals

from celery_dynbeat.metrics.counts import Counts, ProcessCounts
from celery_dynbeat.metrics.database_gauges import DatabaseGauges
from celery_dynbeat.metrics.definitions import Exporter, Kind, exported_by
from celery_dynbeat.metrics.endpoint import Endpoint, open_endpoint
from celery_dynbeat.metrics.pool_counts import PoolCounts
from celery_dynbeat.metrics.process_gauges import ClockGauge, PassGauge
from celery_dynbeat.metrics.receivers import Receivers
from celery_dynbeat.metrics.shared_folder import SharedFolder
from celery_dynbeat.process.context import Context

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

#: Set by an application that uses prometheus_client's own multiprocess mode.
MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


class BeatMetrics:
    """The metrics of a beat. The constructor starts to count and opens the endpoint."""

    def __init__(self, context: Context, *, ports: Sequence[int]) -> None:
        counts = ProcessCounts()
        self._receivers = Receivers(counts)
        _add_zeros(counts, Exporter.BEAT)
        self._receivers.connect(context.database.engine)
        collectors: list[Collector] = [
            counts,
            PassGauge(lambda: self._receivers.last_pass_at),
            ClockGauge(context.clock),
            DatabaseGauges(context),
        ]
        self.endpoint = open_endpoint(
            collectors, address=context.settings.metrics_address, ports=ports
        )

    def close(self) -> None:
        """Count nothing more, and free the port."""
        self._receivers.disconnect()
        if self.endpoint is not None:
            self.endpoint.close()


class WorkerMetrics:
    """The metrics of a worker. The constructor connects the receivers, before the pool forks.

    If ``forks`` is true, child processes of the worker also count.
    """

    def __init__(self, context: Context, *, ports: Sequence[int], forks: bool) -> None:
        self._context, self._ports = context, ports
        self._folder: SharedFolder | None = None
        self.counts: Counts = self._pool_counts() if forks else ProcessCounts()
        self._receivers = count_in_worker(context, self.counts)
        self.endpoint: Endpoint | None = None

    def _pool_counts(self) -> PoolCounts:
        shared = os.environ.get(MULTIPROCESS_VARIABLE)
        if shared is None:
            self._folder = SharedFolder()
            return PoolCounts(self._folder.path, name="worker")
        folder = Path(shared)
        # Raises OSError if there is no such folder.
        folder.stat()
        # The application's own MultiProcessCollector then also shows these files.
        return PoolCounts(folder, name=f"worker-{os.getpid()}")

    def start(self) -> None:
        """Open the endpoint, after the pool has forked."""
        # On a full disk the receivers log what cannot be counted.
        with suppress(OSError):
            _add_zeros(self.counts, Exporter.WORKER)
        collectors: list[Collector] = [self.counts, ClockGauge(self._context.clock)]
        address = self._context.settings.metrics_address
        self.endpoint = open_endpoint(collectors, address=address, ports=self._ports)
        if self.endpoint is not None:
            # Processes that replace pool processes are forked while the endpoint is open.
            signals.worker_process_init.connect(self._on_process_init, weak=False)

    def _on_process_init(self, **_: object) -> None:
        if self.endpoint is not None:
            self.endpoint.close_inherited()

    def close(self) -> None:
        """Count nothing more, free the port, and remove the files."""
        self._receivers.disconnect()
        signals.worker_process_init.disconnect(self._on_process_init)
        if self.endpoint is not None:
            self.endpoint.close()
        self.counts.close()
        if self._folder is not None:
            self._folder.remove()


def count_in_worker(context: Context, counts: Counts) -> Receivers:
    """Add what happens in this process of a worker to ``counts`` from now on."""
    app: Celery = context.app
    receivers = Receivers(counts, knows_task=lambda name: name in app.tasks)
    receivers.connect(context.database.engine)
    return receivers


def _add_zeros(counts: Counts, exporter: Exporter) -> None:
    """Export the counters without labels from the start: increase() then sees the first event."""
    for metric in exported_by(exporter):
        if metric.kind is Kind.COUNTER and not metric.labels:
            counts.add(metric, 0)
