"""Signals: call your own code when beat or a worker reports an event.

    from celery_dynbeat.signals import run_failed

    @run_failed.connect
    def on_failure(event, **_):
        print(event.schedule, event.error)

The signals are objects of Celery's ``Signal``. A receiver gets ``event``, a frozen dataclass of
this module. ``sender`` is the name of the task where the event has one, so ``connect(sender="t")``
selects a task. A signal is sent after the commit of what it reports, in the process that made the
change: a receiver must be connected there. Beat and workers wait for receivers, so a receiver
should return quickly. Celery logs its exceptions and continues. docs/reference/signals.md
"""

from typing import Any

from celery.utils.dispatch import Signal

from celery_dynbeat.signals.events import (
    AlertChanged,
    AlertMessageEnded,
    FireTimesSkipped,
    HistoryPruned,
    HoldChanged,
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
    "AlertChanged",
    "AlertMessageEnded",
    "FireTimesSkipped",
    "HistoryPruned",
    "HoldChanged",
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
    "run_late",
    "run_lost",
    "run_refused",
    "run_slow",
    "run_started",
    "runs_sent",
    "schedule_paused",
    "schedule_quarantined",
    "schedule_recovered",
]


def _signal(name: str) -> Any:
    # Any: Celery has no types.
    return Signal(name=name, providing_args={"event"})


#: In beat.
runs_sent = _signal("runs_sent")
fire_times_skipped = _signal("fire_times_skipped")
retries_resent = _signal("retries_resent")
publish_failed = _signal("publish_failed")
schedule_quarantined = _signal("schedule_quarantined")
pass_ended = _signal("pass_ended")
notification_received = _signal("notification_received")
history_pruned = _signal("history_pruned")
#: In beat, when alerts are on. The first two are sent for each kind of alert.
alert_opened = _signal("alert_opened")
alert_recovered = _signal("alert_recovered")
alert_message_sent = _signal("alert_message_sent")
alert_message_dropped = _signal("alert_message_dropped")
run_late = _signal("run_late")
run_slow = _signal("run_slow")
#: In a process of a worker that executes tasks, or in its main process.
run_started = _signal("run_started")
run_refused = _signal("run_refused")
run_deferred = _signal("run_deferred")
run_ended = _signal("run_ended")
run_failed = _signal("run_failed")
ping_dropped = _signal("ping_dropped")
#: In beat or in a worker.
run_lost = _signal("run_lost")
schedule_recovered = _signal("schedule_recovered")
#: In beat, in a worker, or in the process that calls the API.
schedule_paused = _signal("schedule_paused")
#: In the process that calls the API.
hold_started = _signal("hold_started")
hold_released = _signal("hold_released")
