"""Signals: call your own code when beat or a worker reports an event.

::

    from celery_dynbeat.signals import run_failed


    @run_failed.connect
    def on_failure(event, **_):
        print(event.schedule, event.error)

The signals are objects of Celery's ``Signal``. A receiver gets ``event``, which is a frozen
dataclass of this module. ``sender`` is the name of the task if the event has one, so
``connect(sender="t")`` selects one task. A signal is sent after the change that it reports has been
committed, in the process that made the change, so the receiver must be connected there. Beat and
workers wait for receivers, so a receiver should return quickly. If a receiver raises an exception,
Celery logs it and continues. See docs/reference/signals.md.
"""

from collections.abc import Callable
from typing import Any

from celery.utils.dispatch import Signal

from celery_dynbeat.common.states import Status
from celery_dynbeat.telemetry import subscribe, unsubscribe
from celery_dynbeat.telemetry.events import (
    AlertMessageDropped,
    AlertMessageSent,
    AlertOpened,
    AlertRecovered,
    BatchKind,
    FireTimesSkipped,
    HistoryPruned,
    HoldReleased,
    HoldStarted,
    NotificationReceived,
    PassEnded,
    PingsDropped,
    PublishFailed,
    RetriesResent,
    RunDeferred,
    RunEnded,
    RunLost,
    RunRefused,
    RunsSent,
    RunStarted,
    SchedulePaused,
    ScheduleQuarantined,
    ScheduleRecovered,
    SentRun,
)

__all__ = [
    "AlertMessageDropped",
    "AlertMessageSent",
    "AlertOpened",
    "AlertRecovered",
    "BatchKind",
    "FireTimesSkipped",
    "HistoryPruned",
    "HoldReleased",
    "HoldStarted",
    "NotificationReceived",
    "PassEnded",
    "PingsDropped",
    "PublishFailed",
    "RetriesResent",
    "RunDeferred",
    "RunEnded",
    "RunLost",
    "RunRefused",
    "RunStarted",
    "RunsSent",
    "SchedulePaused",
    "ScheduleQuarantined",
    "ScheduleRecovered",
    "SentRun",
    "alert_message_dropped",
    "alert_message_sent",
    "alert_opened",
    "alert_recovered",
    "fire_times_skipped",
    "history_pruned",
    "hold_released",
    "hold_started",
    "notification_received",
    "pass_ended",
    "ping_dropped",
    "publish_failed",
    "retries_resent",
    "run_deferred",
    "run_ended",
    "run_failed",
    "run_lost",
    "run_refused",
    "run_started",
    "runs_sent",
    "schedule_paused",
    "schedule_quarantined",
    "schedule_recovered",
]


class EventSignal(Signal):  # type: ignore[misc]  # Celery has no types
    """A signal that sends the events of one type, or only those for which ``selects`` is true.

    It listens to events only after a receiver has been connected.
    """

    def __init__(
        self, name: str, event_type: type, selects: Callable[[Any], bool] | None = None
    ) -> None:
        super().__init__(name=name, providing_args={"event"})
        self._event_type = event_type
        self._selects = selects

    def connect(self, *args: Any, **kwargs: Any) -> Any:
        """Connect a receiver, like ``Signal.connect``."""
        connected = super().connect(*args, **kwargs)
        subscribe(self._forward, self._event_type, in_context=True)
        return connected

    def disconnect(self, *args: Any, **kwargs: Any) -> Any:
        """Disconnect a receiver, like ``Signal.disconnect``."""
        disconnected = super().disconnect(*args, **kwargs)
        if not self.receivers:
            unsubscribe(self._forward, self._event_type)
        return disconnected

    def _forward(self, event: Any) -> None:
        if self._selects is None or self._selects(event):
            self.send(sender=getattr(event, "task", None), event=event)


#: In beat.
runs_sent = EventSignal("runs_sent", RunsSent, lambda event: event.sent > 0)
fire_times_skipped = EventSignal("fire_times_skipped", FireTimesSkipped)
retries_resent = EventSignal("retries_resent", RetriesResent)
publish_failed = EventSignal("publish_failed", PublishFailed)
schedule_quarantined = EventSignal("schedule_quarantined", ScheduleQuarantined)
pass_ended = EventSignal("pass_ended", PassEnded)
notification_received = EventSignal("notification_received", NotificationReceived)
history_pruned = EventSignal("history_pruned", HistoryPruned)
schedule_recovered = EventSignal("schedule_recovered", ScheduleRecovered)
#: In beat, when alerts are on.
alert_opened = EventSignal("alert_opened", AlertOpened)
alert_recovered = EventSignal("alert_recovered", AlertRecovered)
alert_message_sent = EventSignal("alert_message_sent", AlertMessageSent)
alert_message_dropped = EventSignal("alert_message_dropped", AlertMessageDropped)
#: In a process of a worker that executes tasks, or in its main process.
run_started = EventSignal("run_started", RunStarted)
run_refused = EventSignal("run_refused", RunRefused)
run_deferred = EventSignal("run_deferred", RunDeferred)
run_ended = EventSignal("run_ended", RunEnded)
run_failed = EventSignal("run_failed", RunEnded, lambda event: event.status == Status.FAILED)
ping_dropped = EventSignal("ping_dropped", PingsDropped)
#: In beat or in a worker.
run_lost = EventSignal("run_lost", RunLost)
#: In beat, in a worker, or in the process that calls the API.
schedule_paused = EventSignal("schedule_paused", SchedulePaused)
#: In the process that calls the API.
hold_started = EventSignal("hold_started", HoldStarted)
hold_released = EventSignal("hold_released", HoldReleased)
