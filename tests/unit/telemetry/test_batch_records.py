"""The log records of a batch of sent runs."""

import logging
from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat.telemetry import events
from celery_dynbeat.telemetry.logs import MAX_NAMED_RUNS, write_batch


def run(number=1, *, owner="user:42", name="digest"):
    return events.SentRun(
        run_id=f"run-{number}",
        owner=owner,
        schedule=name,
        task="mail.send",
        attempt=3,
        queue="mails",
        fire_at=datetime(2026, 11, 21, 9, tzinfo=UTC),
        lag=timedelta(0),
        origin="schedule",
        sent_before=True,
    )


@pytest.fixture
def log(caplog):
    """Return a function that logs a sent batch and returns its records."""

    def log(sent, level=logging.INFO, claimed=None):
        batch = events.RunsSent(
            runs=events.SentRuns(lambda: sent),
            kind=events.BatchKind.DUE,
            claimed=len(sent) if claimed is None else claimed,
            sent=len(sent),
        )
        with caplog.at_level(level):
            write_batch(batch)
        return caplog.records

    return log


def test_a_small_batch_names_the_schedule_of_each_run(log):
    (record,) = log([run(1), run(2, owner="user:7", name="report")])

    assert record.getMessage() == (
        "runs dispatched 2 of 2: 'digest' of owner 'user:42', 'report' of owner 'user:7'"
    )
    assert record.runs[0] == {
        "owner": "user:42",
        "schedule": "digest",
        "run_id": "run-1",
        "attempt": 3,
        "task": "mail.send",
    }
    assert (record.event, record.sent, record.claimed) == ("runs_dispatched", 2, 2)


def test_several_runs_of_one_schedule_are_named_once(log):
    (record,) = log([run(1), run(2)])

    assert record.getMessage() == "runs dispatched 2 of 2: 'digest' of owner 'user:42'"
    assert [each["run_id"] for each in record.runs] == ["run-1", "run-2"]


@pytest.mark.parametrize(("count", "named"), [(MAX_NAMED_RUNS, 10), (MAX_NAMED_RUNS + 1, 0)])
def test_a_large_batch_has_counts_only(log, count, named):
    (record,) = log([run(number, name=f"n-{number}") for number in range(count)])

    assert len(record.runs) == named
    assert record.getMessage().count("of owner") == named


def test_only_sent_runs_are_named(log):
    (record,) = log([run(2, name="other")], claimed=2)

    assert record.getMessage() == "runs dispatched 1 of 2: 'other' of owner 'user:42'"
    assert [each["run_id"] for each in record.runs] == ["run-2"]


@pytest.mark.parametrize("line_break", ["\n", "\r", "\x85", "\u2028", "\x1b[2K"])
def test_a_name_cannot_forge_a_line(log, line_break):
    (record,) = log([run(name=f"a{line_break}[INFO] forged", owner=f"b{line_break}")])

    assert record.getMessage().isprintable()


def test_each_run_has_a_record_at_debug(log):
    batch, *runs = log([run(1), run(2)], level=logging.DEBUG)

    assert batch.event == "runs_dispatched"
    assert [record.run_id for record in runs] == ["run-1", "run-2"]


@pytest.mark.parametrize(
    ("level", "count"), [(logging.INFO, MAX_NAMED_RUNS + 1), (logging.WARNING, 1)]
)
def test_the_runs_of_a_large_or_unlogged_batch_are_not_built(caplog, level, count):
    def build():
        pytest.fail("a listener read the runs")

    batch = events.RunsSent(
        runs=events.SentRuns(build), kind=events.BatchKind.OVERDUE, claimed=count, sent=count
    )
    with caplog.at_level(level):
        write_batch(batch)

    assert len(caplog.records) == (level == logging.INFO)
