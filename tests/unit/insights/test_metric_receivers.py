"""Which series each event changes."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat.metrics.definitions import EVENT_METRICS
from celery_dynbeat.metrics.exporting import ProcessCounts
from celery_dynbeat.telemetry import emit, events

AT = datetime(2026, 11, 22, tzinfo=UTC)
RUN = {"run_id": "1", "owner": "o", "schedule": "s", "task": "t"}
SENT = {**RUN, "attempt": 1, "queue": "q", "fire_at": AT, "lag": timedelta(seconds=2)}
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
    "cause": "x",
}
MESSAGE = {"url": 1, "alerts": 1}
DAY = timedelta(days=1)


def passed(error):
    duration = timedelta(seconds=0.2)
    return events.PassEnded(duration=duration, error=error, is_database_error=False)


def sent(*, again, origin="schedule"):
    run = events.SentRun(**SENT, origin=origin, sent_before=again)
    kind = events.BatchKind.OVERDUE if again else events.BatchKind.DUE
    return events.RunsSent(runs=(run, run), kind=kind, claimed=2, sent=2)


def skipped(reason):
    fields = {"owner": "o", "schedule": "s", "task": "t", "fire_at": AT}
    return events.FireTimesSkipped(**fields, count=9, reason=reason)


CASES: list[tuple[object, dict[str, float]]] = [
    (
        sent(again=False),
        {
            "runs_dispatched_total t q": 2,
            "lag_seconds_count q": 2,
            "lag_seconds_sum q": 4,
        },
    ),
    (
        sent(again=False, origin="manual"),
        {"runs_dispatched_total t q": 2},
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
        events.AlertMessageDropped(**MESSAGE, error="x"),
        {"alert_messages_dropped_total": 1},
    ),
    (
        events.SchedulePaused(**PAUSED, automatic=True),
        {"automatic_pauses_total": 1},
    ),
    (events.SchedulePaused(**PAUSED, automatic=False), {}),
]


@pytest.mark.parametrize(("event", "expected"), CASES)
def test_an_event_changes_its_series(event, expected):
    counts = ProcessCounts()
    counts.connect()
    before = series(counts)
    try:
        emit(event)
    finally:
        counts.disconnect()

    found = series(counts)
    assert {name: found[name] for name in found if found[name] != before.get(name)} == expected


def series(counts):
    return {
        " ".join([sample.name.removeprefix("dynbeat_"), *sample.labels.values()]): sample.value
        for family in counts.collect()
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }


def test_each_metric_of_an_event_has_a_case():
    changed = {name.split()[0] for _, expected in CASES for name in expected}

    assert {re.sub("_(count|sum)$", "", name) for name in changed} == {
        metric.name for metric in EVENT_METRICS
    }
