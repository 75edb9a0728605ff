"""The log records of events whose level, text or traceback depends on the event."""

import logging
from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat.telemetry import events
from celery_dynbeat.telemetry.logs import write

AT = datetime(2026, 11, 21, 9, tzinfo=UTC)
SCHEDULE = {"schedule_id": 1, "owner": "user:42", "schedule": "digest"}


@pytest.fixture
def log(caplog):
    """Return a function that logs an event and returns its records."""

    def log(event, level=logging.INFO):
        caplog.clear()
        with caplog.at_level(level):
            write(event)
        return caplog.records

    return log


def passed(error):
    return events.PassEnded(
        duration=timedelta(seconds=1),
        error=None if error is None else type(error).__name__,
        is_database_error=False,
        reason=None if error is None else str(error),
        retry_seconds=0.24,
        exception=error,
    )


def paused(*, failures):
    return events.SchedulePaused(
        **SCHEDULE,
        task="t",
        actor="",
        reason="ValueError: 4111-1111",
        automatic=failures is not None,
        failures=failures,
        at=AT,
    )


def lost(event_type=events.RunLost, **fields):
    return event_type(
        **SCHEDULE, run_id="1", task="t", attempt=2, worker="w", reason="gone", at=AT, **fields
    )


def test_only_a_failed_pass_is_logged_and_its_traceback_at_debug(log):
    error = OSError("unreachable")
    (record,) = log(passed(error))

    assert record.getMessage() == "pass failed, next try in 0.2 s: unreachable"
    assert record.exc_info is None
    assert log(passed(error), logging.DEBUG)[0].exc_info[1] is error
    assert log(passed(None), logging.DEBUG) == []


def test_only_an_automatic_pause_is_logged_without_the_error_of_the_task(log):
    (record,) = log(paused(failures=3))

    assert record.getMessage().endswith("is paused: 3 failures in a row")
    assert "4111-1111" not in str(vars(record))
    assert log(paused(failures=None)) == []


def test_a_quarantine_has_the_traceback_of_its_error(log):
    error = ValueError("minute 99")
    event = events.ScheduleQuarantined(**SCHEDULE, error="minute 99", exception=error, at=AT)
    (record,) = log(event)

    assert record.exc_info[1] is error
    assert (record.event, record.schedule_id) == ("schedule_quarantined", 1)


@pytest.mark.parametrize(
    ("event", "result"),
    [
        (lost(sent_again=False), "lost"),
        (lost(sent_again=True), "sent again"),
        (lost(events.ReplacedRunLost, sent_again=False), "revoked"),
    ],
)
def test_a_lost_run_is_logged_with_its_result(log, event, result):
    (record,) = log(event)

    assert record.getMessage() == f"run 1 is {result}: gone (worker 'w')"
    assert record.event == "run_lost"


def test_a_repeated_failure_to_terminate_is_logged_at_debug(log):
    event = events.TerminationFailed(count=2, reason="refused", repeated=True)

    assert log(event) == []
    assert log(event, logging.DEBUG)[0].levelname == "DEBUG"
