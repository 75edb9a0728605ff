"""Count what the signals of beat and workers report."""

import logging
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.engine import Engine, ExceptionContext

from celery_dynbeat import signals
from celery_dynbeat.common.events import Event
from celery_dynbeat.monitoring.metrics import definitions as metrics
from celery_dynbeat.monitoring.metrics.counts import Counts
from celery_dynbeat.monitoring.metrics.label_values import UNREGISTERED, LabelValues, skip_reason

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
        # Celery identifies a receiver by its id: keep the objects for disconnect().
        self._connected = [(signal, self._guarded(count)) for signal, count in self._table()]

    def _table(self) -> list[tuple[Any, Callable[[Any], None]]]:
        return [
            (signals.runs_sent, self._on_sent),
            (signals.fire_times_skipped, self._on_skipped),
            (signals.retries_resent, self._on_retries_resent),
            (signals.publish_failed, self._on_publish_failed),
            (signals.schedule_quarantined, self._on_quarantined),
            (signals.pass_ended, self._on_pass),
            (signals.notification_received, self._on_notification),
            (signals.history_pruned, self._on_pruned),
            (signals.alert_opened, self._on_alert_opened),
            (signals.alert_recovered, self._on_alert_recovered),
            (signals.alert_message_sent, self._on_message_sent),
            (signals.alert_message_dropped, self._on_message_dropped),
            (signals.run_started, self._on_started),
            (signals.run_refused, self._on_refused),
            (signals.run_deferred, self._on_deferred),
            (signals.run_ended, self._on_ended),
            (signals.run_lost, self._on_lost),
            (signals.schedule_paused, self._on_paused),
            (signals.ping_dropped, self._on_pings_dropped),
        ]

    def connect(self, engine: Engine | None = None) -> None:
        """Connect to the signals, and to the errors of ``engine``."""
        for signal, receiver in self._connected:
            signal.connect(receiver, weak=False)
        if engine is not None:
            self._engine = engine
            sqlalchemy_event.listen(engine, "handle_error", self._on_database_error)

    def disconnect(self) -> None:
        """Count nothing more."""
        for signal, receiver in self._connected:
            signal.disconnect(receiver)
        engine, self._engine = self._engine, None
        if engine is not None:
            sqlalchemy_event.remove(engine, "handle_error", self._on_database_error)

    def _guarded(self, count: Callable[[Any], None]) -> Callable[..., None]:
        def receive(event: Any, **_: Any) -> None:
            try:
                count(event)
            # Celery would log each error, and a full disk fails for each run.
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

    def _on_sent(self, event: signals.RunsSent) -> None:
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

    def _on_skipped(self, event: signals.FireTimesSkipped) -> None:
        self._counts.add(metrics.SKIPPED, event.count, skip_reason(event.reason))

    def _on_retries_resent(self, event: signals.RetriesResent) -> None:
        self._counts.add(metrics.RETRIES_RESENT, event.count)

    def _on_publish_failed(self, event: signals.PublishFailed) -> None:
        del event
        self._counts.add(metrics.PUBLISH_ERRORS, 1)

    def _on_quarantined(self, event: signals.ScheduleQuarantined) -> None:
        del event
        self._counts.add(metrics.QUARANTINES, 1)

    def _on_pass(self, event: signals.PassEnded) -> None:
        if event.error is not None:
            self._counts.add(metrics.PASSES_FAILED, 1)
            return
        self.last_pass_at = time.monotonic()
        self._counts.observe(metrics.PASS_DURATION, event.duration.total_seconds())

    def _on_notification(self, event: signals.NotificationReceived) -> None:
        del event
        self._counts.add(metrics.NOTIFICATIONS, 1)

    def _on_pruned(self, event: signals.HistoryPruned) -> None:
        metric = metrics.PRUNED_RUNS if event.table == "run" else metrics.PRUNED_CHANGES
        self._counts.add(metric, event.count)

    def _on_alert_opened(self, event: signals.AlertChanged) -> None:
        self._counts.add(metrics.ALERTS_OPENED, 1, event.kind)

    def _on_alert_recovered(self, event: signals.AlertChanged) -> None:
        self._counts.add(metrics.ALERTS_RECOVERED, 1, event.kind)

    def _on_message_sent(self, event: signals.AlertMessageEnded) -> None:
        del event
        self._counts.add(metrics.ALERT_MESSAGES_SENT, 1)

    def _on_message_dropped(self, event: signals.AlertMessageEnded) -> None:
        del event
        self._counts.add(metrics.ALERT_MESSAGES_DROPPED, 1)

    def _on_started(self, event: signals.RunStarted) -> None:
        queue = self._queue(event.queue)
        self._counts.add(metrics.STARTED, 1, self._task(event.task), queue)
        if event.waited is not None:
            self._counts.observe(metrics.QUEUE_TIME, event.waited.total_seconds(), queue)

    def _on_refused(self, event: signals.RunRefused) -> None:
        if event.duplicate:
            self._counts.add(metrics.REFUSED, 1, self._task(event.task))

    def _on_deferred(self, event: signals.RunDeferred) -> None:
        self._counts.add(metrics.DEFERRED, 1, self._task(event.task))

    def _on_ended(self, event: signals.RunEnded) -> None:
        task = self._task(event.task)
        self._counts.add(metrics.ENDED, 1, task, event.status)
        if event.duration is not None:
            self._counts.observe(metrics.RUN_DURATION, event.duration.total_seconds(), task)

    def _on_lost(self, event: signals.RunLost) -> None:
        metric = metrics.RESCUED if event.sent_again else metrics.LOST
        self._counts.add(metric, 1, self._task(event.task))

    def _on_paused(self, event: signals.SchedulePaused) -> None:
        if event.automatic:
            self._counts.add(metrics.PAUSES, 1)

    def _on_pings_dropped(self, event: signals.PingsDropped) -> None:
        self._counts.add(metrics.PINGS_DROPPED, event.count)

    def _on_database_error(self, context: ExceptionContext) -> None:
        error = context.sqlalchemy_exception or context.original_exception
        try:
            self._counts.add(metrics.DATABASE_ERRORS, 1, type(error).__name__)
        except Exception as failure:  # noqa: BLE001
            self._log_failure(failure)
