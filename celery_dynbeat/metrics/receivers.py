"""Count the events of beat and workers."""

import logging
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.engine import Engine, ExceptionContext

from celery_dynbeat.common.events import Event
from celery_dynbeat.metrics import definitions as metrics
from celery_dynbeat.metrics.counts import Counts
from celery_dynbeat.metrics.label_values import UNREGISTERED, LabelValues, skip_reason
from celery_dynbeat.telemetry import events, subscribe, unsubscribe

logger = logging.getLogger(__name__)

#: The origin of a run that its trigger fired. Only such a run has a lag.
_FIRED = "schedule"


class Receivers:
    """The receivers that add to ``counts``. Child processes inherit them."""

    def __init__(self, counts: Counts, *, knows_task: Callable[[str], bool] | None = None) -> None:
        self._counts = counts
        self._labels = LabelValues()
        self._knows_task = knows_task
        self._has_failed = False
        self._engine: Engine | None = None
        self.last_pass_at = time.monotonic()
        self._connected = [(kind, self._guarded(count)) for kind, count in self._table()]

    def _table(self) -> list[tuple[type, Callable[[Any], None]]]:
        return [
            (events.RunsSent, self._on_sent),
            (events.FireTimesSkipped, self._on_skipped),
            (events.RetriesResent, self._on_retries_resent),
            (events.PublishFailed, self._on_publish_failed),
            (events.ScheduleQuarantined, self._on_quarantined),
            (events.PassEnded, self._on_pass),
            (events.NotificationReceived, self._on_notification),
            (events.HistoryPruned, self._on_pruned),
            (events.AlertOpened, self._on_alert_opened),
            (events.AlertRecovered, self._on_alert_recovered),
            (events.AlertMessageSent, self._on_message_sent),
            (events.AlertMessageDropped, self._on_message_dropped),
            (events.RunStarted, self._on_started),
            (events.RunRefused, self._on_refused),
            (events.RunDeferred, self._on_deferred),
            (events.RunEnded, self._on_ended),
            (events.RunLost, self._on_lost),
            (events.SchedulePaused, self._on_paused),
            (events.PingsDropped, self._on_pings_dropped),
        ]

    def connect(self, engine: Engine | None = None) -> None:
        """Listen to the events of this process, and to the errors of ``engine``."""
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

    def _guarded(self, count: Callable[[Any], None]) -> Callable[[Any], None]:
        def receive(event: Any) -> None:
            try:
                count(event)
            # A full disk fails for each run: log the first error only.
            except Exception as error:  # noqa: BLE001
                self._log_failure(error)

        return receive

    def _log_failure(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            logger.error(
                "metrics are incomplete: an event was not counted: %s: %s",
                type(error).__name__,
                error,
                extra={"event": Event.METRICS_FAILED},
            )

    def _task(self, name: str) -> str:
        if name and self._knows_task is not None and not self._knows_task(name):
            return UNREGISTERED
        return self._labels.bounded("task", name)

    def _queue(self, name: str | None) -> str:
        return self._labels.bounded("queue", name)

    def _on_sent(self, event: events.RunsSent) -> None:
        for run in event.runs:
            if run.sent_before:
                self._counts.add(metrics.RESENT, 1)
                continue
            task, queue = self._task(run.task), self._queue(run.queue)
            self._counts.add(metrics.DISPATCHED, 1, task, queue)
            # increase() does not see the first value of a series: let it be 0.
            self._counts.add(metrics.LOST, 0, task)
            if run.origin == _FIRED:
                self._counts.observe(metrics.LAG, run.lag.total_seconds(), queue)

    def _on_skipped(self, event: events.FireTimesSkipped) -> None:
        self._counts.add(metrics.SKIPPED, event.count, skip_reason(event.reason))

    def _on_retries_resent(self, event: events.RetriesResent) -> None:
        self._counts.add(metrics.RETRIES_RESENT, event.count)

    def _on_publish_failed(self, event: events.PublishFailed) -> None:
        del event
        self._counts.add(metrics.PUBLISH_ERRORS, 1)

    def _on_quarantined(self, event: events.ScheduleQuarantined) -> None:
        del event
        self._counts.add(metrics.QUARANTINES, 1)

    def _on_pass(self, event: events.PassEnded) -> None:
        if event.error is not None:
            self._counts.add(metrics.PASSES_FAILED, 1)
            return
        self.last_pass_at = time.monotonic()
        self._counts.observe(metrics.PASS_DURATION, event.duration.total_seconds())

    def _on_notification(self, event: events.NotificationReceived) -> None:
        del event
        self._counts.add(metrics.NOTIFICATIONS, 1)

    def _on_pruned(self, event: events.HistoryPruned) -> None:
        metric = metrics.PRUNED_RUNS if event.table == "run" else metrics.PRUNED_CHANGES
        self._counts.add(metric, event.count)

    def _on_alert_opened(self, event: events.AlertOpened) -> None:
        self._counts.add(metrics.ALERTS_OPENED, 1, event.kind)

    def _on_alert_recovered(self, event: events.AlertRecovered) -> None:
        self._counts.add(metrics.ALERTS_RECOVERED, 1, event.kind)

    def _on_message_sent(self, event: events.AlertMessageSent) -> None:
        del event
        self._counts.add(metrics.ALERT_MESSAGES_SENT, 1)

    def _on_message_dropped(self, event: events.AlertMessageDropped) -> None:
        del event
        self._counts.add(metrics.ALERT_MESSAGES_DROPPED, 1)

    def _on_started(self, event: events.RunStarted) -> None:
        queue = self._queue(event.queue)
        self._counts.add(metrics.STARTED, 1, self._task(event.task), queue)
        if event.waited is not None:
            self._counts.observe(metrics.QUEUE_TIME, event.waited.total_seconds(), queue)

    def _on_refused(self, event: events.RunRefused) -> None:
        if event.duplicate:
            self._counts.add(metrics.REFUSED, 1, self._task(event.task))

    def _on_deferred(self, event: events.RunDeferred) -> None:
        self._counts.add(metrics.DEFERRED, 1, self._task(event.task))

    def _on_ended(self, event: events.RunEnded) -> None:
        task = self._task(event.task)
        self._counts.add(metrics.ENDED, 1, task, event.status)
        if event.duration is not None:
            self._counts.observe(metrics.RUN_DURATION, event.duration.total_seconds(), task)

    def _on_lost(self, event: events.RunLost) -> None:
        metric = metrics.RESCUED if event.sent_again else metrics.LOST
        self._counts.add(metric, 1, self._task(event.task))

    def _on_paused(self, event: events.SchedulePaused) -> None:
        if event.automatic:
            self._counts.add(metrics.PAUSES, 1)

    def _on_pings_dropped(self, event: events.PingsDropped) -> None:
        self._counts.add(metrics.PINGS_DROPPED, event.count)

    def _on_database_error(self, context: ExceptionContext) -> None:
        error = context.sqlalchemy_exception or context.original_exception
        try:
            self._counts.add(metrics.DATABASE_ERRORS, 1, type(error).__name__)
        except Exception as failure:  # noqa: BLE001
            self._log_failure(failure)
