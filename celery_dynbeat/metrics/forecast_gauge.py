"""The gauge of the upcoming runs, for autoscalers. Imported only with ``dynbeat_metrics_forecast``.

One forecast serves all scrapes within MAX_AGE seconds. If it does not end within TIMEOUT seconds,
the gauge is absent, and a later scrape has it.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta

from celery_dynbeat.api.lists.forecast import QUICK, forecast
from celery_dynbeat.common.events import Event
from celery_dynbeat.db.engine import reason_of
from celery_dynbeat.metrics.cached_call import CachedCall
from celery_dynbeat.metrics.label_values import LabelValues
from celery_dynbeat.planning.forecasting import Bins
from celery_dynbeat.process.context import Context

logger = logging.getLogger(__name__)

#: Seconds.
TIMEOUT, MAX_AGE = 3.0, 30.0


class ForecastGauge:
    """The runs of each queue that come due within ``span`` from now.

    A queue that once had runs has the value 0 when it has none, because an autoscaler must see it.
    """

    def __init__(
        self,
        context: Context,
        *,
        span: timedelta,
        timeout: float = TIMEOUT,
        max_age: float = MAX_AGE,
    ) -> None:
        self._context, self._span = context, span
        self._labels, self._known = LabelValues(), set[str]()
        self._runs = CachedCall(self._forecast, timeout=timeout, max_age=max_age)

    def value(self) -> Mapping[str, float] | None:
        """Return the runs by queue, or None if they are not known."""
        return self._runs.result()

    def _forecast(self) -> Mapping[str, float] | None:
        try:
            now = self._context.clock.now()
            bins = Bins(now, self._span, 1)
            found = forecast(
                self._context, bins=bins, per="", now=now, effort=QUICK, with_capacity=False
            )
        # Drivers raise errors of many classes. The gauge is absent.
        except Exception as error:  # noqa: BLE001
            logger.warning(
                "forecast for the metrics not made: %s",
                reason_of(error),
                extra={"event": Event.METRICS_FAILED},
            )
            return None
        runs: Counter[str] = Counter()
        for row in found.rows:
            runs[self._labels.bounded("queue", row.queue)] += row.runs
        self._known.update(runs)
        return {queue: float(runs[queue]) for queue in sorted(self._known)}
