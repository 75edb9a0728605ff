"""Which series each signal changes."""

from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat import signals
from celery_dynbeat.monitoring.metrics.counts import ProcessCounts
from celery_dynbeat.monitoring.metrics.receivers import Receivers

AT = datetime(2026, 11, 22, tzinfo=UTC)
RUN = {"run_id": "1", "owner": "o", "schedule": "s", "task": "t"}
ENDED = {**RUN, "attempt": 1, "error": None}
LOST = {**RUN, "attempt": 1, "worker": "w", "reason": "gone"}
SENT = {**RUN, "queue": "q", "scheduled_for": AT, "lag": timedelta(seconds=2)}
PAUSED = {"owner": "o", "schedule": "s", "task": "t", "actor": "", "reason": ""}
ALERT = signals.AlertChanged(
    kind="late",
    schedule_id=1,
    owner="o",
    schedule="s",
    task="t",
    opened_at=AT,
    run_id=None,
    value=None,
    detail=None,
)
MESSAGE = signals.AlertMessageEnded(target="default", severity="error", error=None)


def passed(error):
    duration = timedelta(seconds=0.2)
    return signals.PassEnded(duration=duration, error=error, is_database_error=False)


def sent(*, again, origin="schedule"):
    run = signals.SentRun(**SENT, origin=origin, sent_before=again)
    return signals.RunsSent(runs=(run, run), again=again)


def started(waited):
    return signals.RunStarted(**RUN, queue="q", scheduled_for=AT, attempt=1, waited=waited)


def ended(duration, **fields):
    return signals.RunEnded(**{**ENDED, **fields}, status="failed", duration=duration)


def skipped(reason):
    fields = {"owner": "o", "schedule": "s", "task": "t", "scheduled_for": AT}
    return signals.FireTimesSkipped(**fields, count=9, reason=reason)


CASES = [
    (
        signals.runs_sent,
        sent(again=False),
        {
            "runs_dispatched_total t q": 2,
            "lag_seconds_count q": 2,
            "lag_seconds_sum q": 4,
            "runs_lost_total t": 0,
        },
    ),
    (
        signals.runs_sent,
        sent(again=False, origin="manual"),
        {"runs_dispatched_total t q": 2, "runs_lost_total t": 0},
    ),
    (signals.runs_sent, sent(again=True), {"runs_resent_total": 2}),
    (signals.fire_times_skipped, skipped("missed: x"), {"runs_skipped_total missed": 9}),
    (signals.retries_resent, signals.RetriesResent(count=3), {"retries_resent_total": 3}),
    (
        signals.publish_failed,
        signals.PublishFailed(**RUN, permanent=False),
        {"publish_errors_total": 1},
    ),
    (
        signals.schedule_quarantined,
        signals.ScheduleQuarantined(schedule_id=1, owner=None, schedule=None, error="x"),
        {"quarantines_total": 1},
    ),
    (
        signals.pass_ended,
        passed(None),
        {"pass_duration_seconds_count": 1, "pass_duration_seconds_sum": 0.2},
    ),
    (signals.pass_ended, passed("OSError"), {"passes_failed_total": 1}),
    (
        signals.notification_received,
        signals.NotificationReceived(),
        {"notifications_received_total": 1},
    ),
    (
        signals.history_pruned,
        signals.HistoryPruned(table="run", count=5),
        {"pruned_runs_total": 5},
    ),
    (
        signals.history_pruned,
        signals.HistoryPruned(table="change", count=5),
        {"pruned_changes_total": 5},
    ),
    (signals.alert_opened, ALERT, {"alerts_opened_total late": 1}),
    (signals.alert_recovered, ALERT, {"alerts_recovered_total late": 1}),
    (signals.alert_message_sent, MESSAGE, {"alert_messages_sent_total": 1}),
    (signals.alert_message_dropped, MESSAGE, {"alert_messages_dropped_total": 1}),
    (
        signals.ping_dropped,
        signals.PingsDropped(count=3, reason="x"),
        {"pings_dropped_total": 3},
    ),
    (
        signals.run_started,
        started(timedelta(seconds=1)),
        {
            "runs_started_total t q": 1,
            "queue_time_seconds_count q": 1,
            "queue_time_seconds_sum q": 1,
        },
    ),
    (signals.run_started, started(None), {"runs_started_total t q": 1}),
    (
        signals.run_refused,
        signals.RunRefused(**RUN, reason="x", duplicate=True),
        {"duplicates_refused_total t": 1},
    ),
    (signals.run_refused, signals.RunRefused(**RUN, reason="x", duplicate=False), {}),
    (signals.run_deferred, signals.RunDeferred(**RUN), {"runs_deferred_total t": 1}),
    (
        signals.run_ended,
        ended(timedelta(seconds=3)),
        {
            "runs_ended_total t failed": 1,
            "run_duration_seconds_count t": 1,
            "run_duration_seconds_sum t": 3,
        },
    ),
    (signals.run_ended, ended(None, task=""), {"runs_ended_total (unknown) failed": 1}),
    (signals.run_lost, signals.RunLost(**LOST, sent_again=False), {"runs_lost_total t": 1}),
    (signals.run_lost, signals.RunLost(**LOST, sent_again=True), {"runs_rescued_total t": 1}),
    (
        signals.schedule_paused,
        signals.SchedulePaused(**PAUSED, automatic=True),
        {"automatic_pauses_total": 1},
    ),
    (signals.schedule_paused, signals.SchedulePaused(**PAUSED, automatic=False), {}),
]


@pytest.mark.parametrize(("signal", "event", "expected"), CASES)
def test_a_signal_changes_its_series(signal, event, expected):
    counts = ProcessCounts()
    receivers = Receivers(counts)
    receivers.connect()
    try:
        signal.send(sender=None, event=event)
    finally:
        receivers.disconnect()

    found = {
        " ".join([sample.name.removeprefix("dynbeat_"), *sample.labels.values()]): sample.value
        for family in counts.collect()
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }
    assert found == expected
