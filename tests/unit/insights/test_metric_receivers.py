"""Which series each event changes."""

from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat.metrics.counts import ProcessCounts
from celery_dynbeat.metrics.receivers import Receivers
from celery_dynbeat.telemetry import emit, events

AT = datetime(2026, 11, 22, tzinfo=UTC)
RUN = {"run_id": "1", "owner": "o", "schedule": "s", "task": "t"}
ENDED = {**RUN, "attempt": 1, "error": None}
LOST = {**RUN, "schedule_id": 1, "attempt": 1, "worker": "w", "reason": "gone", "at": AT}
SENT = {**RUN, "attempt": 1, "queue": "q", "scheduled_for": AT, "lag": timedelta(seconds=2)}
SCHEDULE = {"schedule_id": 1, "owner": "o", "schedule": "s"}
PAUSED = {**SCHEDULE, "task": "t", "actor": "", "reason": "", "at": AT}
ALERT = {
    "kind": "late",
    "schedule_id": 1,
    "owner": "o",
    "schedule": "s",
    "task": "t",
    "opened_at": AT,
    "run_id": None,
    "value": None,
    "detail": None,
}
MESSAGE = {"target": "default", "severity": "error", "message_id": 1}
DROPPED = {**MESSAGE, "attempts": 9, "error": "x"}
DAY = timedelta(days=1)


def passed(error):
    duration = timedelta(seconds=0.2)
    return events.PassEnded(duration=duration, error=error, is_database_error=False)


def sent(*, again, origin="schedule"):
    run = events.SentRun(**SENT, origin=origin, sent_before=again)
    kind = events.BatchKind.OVERDUE if again else events.BatchKind.DUE
    return events.RunsSent(runs=(run, run), kind=kind, claimed=2, sent=2)


def started(waited):
    return events.RunStarted(
        **RUN, queue="q", scheduled_for=AT, attempt=1, waited=waited, pings=False
    )


def ended(duration, **fields):
    return events.RunEnded(
        **{**ENDED, **fields}, status="failed", duration=duration, at=AT, pings=False
    )


def skipped(reason):
    fields = {"owner": "o", "schedule": "s", "task": "t", "scheduled_for": AT}
    return events.FireTimesSkipped(**fields, count=9, reason=reason)


CASES = [
    (
        sent(again=False),
        {
            "runs_dispatched_total t q": 2,
            "lag_seconds_count q": 2,
            "lag_seconds_sum q": 4,
            "runs_lost_total t": 0,
        },
    ),
    (
        sent(again=False, origin="manual"),
        {"runs_dispatched_total t q": 2, "runs_lost_total t": 0},
    ),
    (sent(again=True), {"runs_resent_total": 2}),
    (skipped("missed: x"), {"runs_skipped_total missed": 9}),
    (events.RetriesResent(count=3, resend_after=DAY), {"retries_resent_total": 3}),
    (
        events.PublishFailed(**RUN, permanent=False),
        {"publish_errors_total": 1},
    ),
    (
        events.ScheduleQuarantined(schedule_id=1, owner=None, schedule=None, error="x", at=AT),
        {"quarantines_total": 1},
    ),
    (
        passed(None),
        {"pass_duration_seconds_count": 1, "pass_duration_seconds_sum": 0.2},
    ),
    (passed("OSError"), {"passes_failed_total": 1}),
    (
        events.NotificationReceived(),
        {"notifications_received_total": 1},
    ),
    (
        events.HistoryPruned(table="run", count=5, older_than=DAY),
        {"pruned_runs_total": 5},
    ),
    (
        events.HistoryPruned(table="change", count=5, older_than=DAY),
        {"pruned_changes_total": 5},
    ),
    (events.AlertOpened(**ALERT), {"alerts_opened_total late": 1}),
    (events.AlertRecovered(**ALERT), {"alerts_recovered_total late": 1}),
    (events.AlertMessageSent(**MESSAGE), {"alert_messages_sent_total": 1}),
    (
        events.AlertMessageDropped(**MESSAGE, attempts=9, error="x"),
        {"alert_messages_dropped_total": 1},
    ),
    (
        events.PingsDropped(count=3, reason="x"),
        {"pings_dropped_total": 3},
    ),
    (
        started(timedelta(seconds=1)),
        {
            "runs_started_total t q": 1,
            "queue_time_seconds_count q": 1,
            "queue_time_seconds_sum q": 1,
        },
    ),
    (started(None), {"runs_started_total t q": 1}),
    (
        events.RunRefused(**RUN, attempt=1, reason="x", duplicate=True),
        {"duplicates_refused_total t": 1},
    ),
    (events.RunRefused(**RUN, attempt=1, reason="x", duplicate=False), {}),
    (events.RunDeferred(**RUN, attempt=1, seconds=10, reason="x"), {"runs_deferred_total t": 1}),
    (
        ended(timedelta(seconds=3)),
        {
            "runs_ended_total t failed": 1,
            "run_duration_seconds_count t": 1,
            "run_duration_seconds_sum t": 3,
        },
    ),
    (ended(None, task=""), {"runs_ended_total (unknown) failed": 1}),
    (events.RunLost(**LOST, sent_again=False), {"runs_lost_total t": 1}),
    (events.RunLost(**LOST, sent_again=True), {"runs_rescued_total t": 1}),
    (
        events.SchedulePaused(**PAUSED, automatic=True),
        {"automatic_pauses_total": 1},
    ),
    (events.SchedulePaused(**PAUSED, automatic=False), {}),
]


@pytest.mark.parametrize(("event", "expected"), CASES)
def test_an_event_changes_its_series(event, expected):
    counts = ProcessCounts()
    receivers = Receivers(counts)
    receivers.connect()
    try:
        emit(event)
    finally:
        receivers.disconnect()

    found = {
        " ".join([sample.name.removeprefix("dynbeat_"), *sample.labels.values()]): sample.value
        for family in counts.collect()
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }
    assert found == expected
