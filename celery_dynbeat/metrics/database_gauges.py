"""The metrics of the whole installation, read from the database at a scrape.

One read serves all scrapes within MAX_AGE seconds. Each query reads a bounded number of rows. If
the database does not answer within TIMEOUT seconds, the gauges are absent and
``dynbeat_database_scrape_success`` is 0. The other metrics do not wait for longer.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate

from prometheus_client import Metric as Family
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.utils import INF, floatToGoString
from sqlalchemy.orm import Session

from celery_dynbeat.common.buckets import RUN_TIME_BOUNDS, names_of
from celery_dynbeat.common.events import Event
from celery_dynbeat.db.engine import reason_of
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.health.evaluation import SHOWN_FOR, Limits, NodeState, missing_nodes, state_of
from celery_dynbeat.metrics import definitions as metrics
from celery_dynbeat.metrics.cached_call import CachedCall
from celery_dynbeat.metrics.definitions import Metric
from celery_dynbeat.metrics.label_values import MAX_VALUES, UNKNOWN
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import health, rollups
from celery_dynbeat.store.rollups import Figures
from celery_dynbeat.store.schedules import late_work

logger = logging.getLogger(__name__)

#: Seconds. Prometheus gives a scrape ten seconds by default.
TIMEOUT = 3.0
MAX_AGE = 5.0
#: The statuses of ended runs. "other" are revoked and expired ones, and those that their task
#: skipped.
ENDED_STATUSES = ("succeeded", "failed", "lost", "other")
_BUCKETS = names_of(RUN_TIME_BOUNDS)


@dataclass(frozen=True, slots=True)
class _Reading:
    tables: health.Tables
    oldest_pending_at: datetime | None
    waiting_runs: int | None
    totals: Sequence[tuple[str, Figures]]
    now: datetime
    duration: float


class DatabaseGauges:
    """The gauges of the database, as a collector for a registry of prometheus_client."""

    def __init__(
        self, context: Context, *, timeout: float = TIMEOUT, max_age: float = MAX_AGE
    ) -> None:
        self._context = context
        self._reading = CachedCall(self._read, timeout=timeout, max_age=max_age)
        self._was_readable = True

    def collect(self) -> Iterable[Family]:
        """Return the gauges. Reads the database if the last reading is too old."""
        reading = self._reading.result()
        yield gauge(metrics.SCRAPE_SUCCESS, float(reading is not None))
        if reading is not None:
            yield gauge(metrics.SCRAPE_DURATION, reading.duration)
            yield from self._gauges(reading)

    def _read(self) -> _Reading | None:
        started = time.monotonic()
        try:
            now = self._context.clock.now()
            nodes_since = now - max(SHOWN_FOR, self._context.settings.node_timeout)

            def work(session: Session) -> _Reading:
                return _Reading(
                    tables=health.read(session, now=now, nodes_since=nodes_since),
                    oldest_pending_at=late_work.unstarted_runs(session).oldest_at,
                    waiting_runs=self._waiting_runs(session),
                    totals=rollups.totals(session, limit=MAX_VALUES),
                    now=now,
                    duration=time.monotonic() - started,
                )

            reading = self._context.database.read_in_transaction(work)
        # Drivers raise errors of many classes. The metric reports the failure.
        except Exception as error:  # noqa: BLE001
            self._log_failure(error)
            return None
        self._was_readable = True
        return reading

    def _waiting_runs(self, session: Session) -> int | None:
        if not self._context.settings.may_cap_runs:
            return None
        # A late import: few installations have such limits.
        from celery_dynbeat.store import places  # noqa: PLC0415

        return places.count_waiting(session)

    def _log_failure(self, error: Exception) -> None:
        # Log this once per outage, because a scrape comes every few seconds.
        if self._was_readable:
            self._was_readable = False
            logger.warning(
                "metrics of the database not read: %s",
                reason_of(error),
                extra={"event": Event.METRICS_FAILED},
            )

    def _gauges(self, reading: _Reading) -> Iterator[Family]:
        tables, now = reading.tables, reading.now
        yield gauge(metrics.DUE_SCHEDULES, tables.due.count)
        yield gauge(metrics.OLDEST_DUE, _age(tables.oldest_due_at, now))
        yield gauge(metrics.OVERDUE_RUNS, tables.overdue.count)
        yield gauge(metrics.OLDEST_OVERDUE, _age(tables.overdue_since, now))
        by_status = {status: float(count.count) for status, count in tables.runs.items()}
        yield gauges(metrics.UNFINISHED_RUNS, by_status)
        yield gauge(metrics.OLDEST_PENDING, _age(reading.oldest_pending_at, now))
        if reading.waiting_runs is not None:
            yield gauge(metrics.WAITING_RUNS, reading.waiting_runs)
        yield gauge(metrics.QUARANTINED_SCHEDULES, tables.quarantined.count)
        yield gauge(metrics.FAILING_SCHEDULES, tables.failing.count)
        yield gauge(metrics.LOST_RUNS, len(tables.lost_first))
        yield gauge(metrics.HOLDS, tables.holds.count)
        yield gauges(metrics.BEATS, self._nodes(reading, NodeKind.BEAT))
        yield gauges(metrics.WORKERS, self._nodes(reading, NodeKind.WORKER))
        yield gauges(metrics.MISSING_NODES, self._missing(reading))
        yield from _of_runs(reading.totals)

    def _nodes(self, reading: _Reading, kind: NodeKind) -> Mapping[str, float]:
        timeout = self._context.settings.node_timeout
        states = Counter(
            state_of(node, now=reading.now, timeout=timeout)
            for node in reading.tables.nodes
            if node.kind == kind
        )
        return {str(state): float(states[state]) for state in NodeState}

    def _missing(self, reading: _Reading) -> Mapping[str, float]:
        nodes, limits = reading.tables.nodes, Limits.of(self._context.settings)
        found = {
            kind: missing_nodes(nodes, kind, now=reading.now, limits=limits) for kind in NodeKind
        }
        return {str(kind): 0.0 if each is None else each.number for kind, each in found.items()}


def _of_runs(totals: Sequence[tuple[str, Figures]]) -> Iterator[Family]:
    ended = CounterMetricFamily(metrics.ENDED.name, metrics.ENDED.help, labels=metrics.ENDED.labels)
    durations = HistogramMetricFamily(
        metrics.RUN_DURATION.name, metrics.RUN_DURATION.help, labels=metrics.RUN_DURATION.labels
    )
    for name, figures in totals:
        queue = name or UNKNOWN
        for status in ENDED_STATUSES:
            ended.add_metric((queue, status), getattr(figures, status))
        numbers = accumulate(figures.run_times.get(each, 0) for each in _BUCKETS)
        bounds = map(floatToGoString, (*metrics.RUN_DURATION.buckets, INF))
        buckets = list(zip(bounds, numbers, strict=True))
        durations.add_metric((queue,), buckets, figures.run_seconds)
    yield ended
    yield durations


def _age(instant: datetime | None, now: datetime) -> float:
    return 0.0 if instant is None else max((now - instant).total_seconds(), 0.0)


def gauge(metric: Metric, value: float) -> Family:
    """Return a gauge without labels."""
    return GaugeMetricFamily(metric.name, metric.help, value=value)


def gauges(metric: Metric, values: Mapping[str, float]) -> Family:
    """Return a gauge with a value for each value of its label."""
    family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for label, value in values.items():
        family.add_metric([label], value)
    return family
