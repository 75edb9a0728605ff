"""The gauges of one process, computed at a scrape without any query."""

import time
from collections.abc import Callable, Iterable

from prometheus_client import Metric as Family

from celery_dynbeat.common.clock import Clock, DatabaseClock
from celery_dynbeat.metrics import definitions as metrics
from celery_dynbeat.metrics.database_gauges import gauge


class ClockGauge:
    """The offset of this host's clock, by the last reading of the database's clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def collect(self) -> Iterable[Family]:
        """Return the gauge, or nothing before the first reading."""
        offset = self._clock.offset() if isinstance(self._clock, DatabaseClock) else None
        if offset is not None:
            yield gauge(metrics.CLOCK_OFFSET, offset.total_seconds())


class PassGauge:
    """The time since the last successful pass. ``last_pass_at`` is on the monotonic clock."""

    def __init__(self, last_pass_at: Callable[[], float]) -> None:
        self._last_pass_at = last_pass_at

    def collect(self) -> Iterable[Family]:
        """Return the gauge."""
        yield gauge(metrics.LAST_PASS, time.monotonic() - self._last_pass_at())
