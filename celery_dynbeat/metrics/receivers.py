"""Count the events of beat."""

import logging
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.engine import Engine, ExceptionContext

from celery_dynbeat.common.events import Event
from celery_dynbeat.metrics import definitions as metrics
from celery_dynbeat.metrics.counts import ProcessCounts
from celery_dynbeat.metrics.label_values import LabelValues, skip_reason
from celery_dynbeat.telemetry import events, subscribe, unsubscribe

logger = logging.getLogger(__name__)

#: The origin of a run that its trigger fired. Only such a run has a lag.
_FIRED = "schedule"


class Receivers:
    """The receivers that add to ``counts``."""

    def __init__(self, counts: ProcessCounts) -> None:
        self._counts = counts
        self._labels = LabelValues()
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
            (events.SchedulePaused, self._on_paused),
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
            # The error may come with each run: log the first one only.
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

    def _on_sent(self, event: events.RunsSent) -> None:
        for run in event.runs:
            if run.sent_before:
                self._counts.add(metrics.RESENT, 1)
                continue
            task = self._labels.bounded("task", run.task)
            queue = self._labels.bounded("queue", run.queue)
            self._counts.add(metrics.DISPATCHED, 1, task, queue)
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

    def _on_paused(self, event: events.SchedulePaused) -> None:
        if event.automatic:
            self._counts.add(metrics.PAUSES, 1)

    def _on_database_error(self, context: ExceptionContext) -> None:
        error = context.sqlalchemy_exception or context.original_exception
        try:
            self._counts.add(metrics.DATABASE_ERRORS, 1, type(error).__name__)
        except Exception as failure:  # noqa: BLE001
            self._log_failure(failure)
