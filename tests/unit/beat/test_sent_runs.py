"""The log records of a published batch."""

import logging
from datetime import UTC, datetime

import pytest

from celery_dynbeat.beat.sent_runs import MAX_NAMED_RUNS, log_sent
from celery_dynbeat.broker.publisher import PublishResult
from celery_dynbeat.common.events import Event
from celery_dynbeat.planning.outgoing_run import OutgoingRun

SECRET = "4111-1111"


def run(number=1, *, owner="user:42", name="digest"):
    return OutgoingRun(
        run_id=f"run-{number}",
        schedule_id=number,
        owner=owner,
        name=name,
        version=1,
        task="mail.send",
        args=[SECRET],
        kwargs={"card": SECRET},
        options={"headers": {"card": SECRET}},
        scheduled_for=datetime(2026, 11, 21, 9, tzinfo=UTC),
        attempt=2,
    )


@pytest.fixture
def log(caplog):
    """Return a function that logs a sent batch and returns its records."""

    def log(outgoing, level=logging.INFO, **published):
        result = PublishResult(**(published or {"sent": [run.run_id for run in outgoing]}))
        with caplog.at_level(level):
            log_sent(outgoing, result, Event.RUNS_DISPATCHED)
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
    (record,) = log([run(1), run(2, name="other")], sent=["run-2"], unknown={"run-1"})

    assert record.getMessage() == "runs dispatched 1 of 2: 'other' of owner 'user:42'"
    assert [each["run_id"] for each in record.runs] == ["run-2"]


@pytest.mark.parametrize("line_break", ["\n", "\r", "\x85", "\u2028", "\x1b[2K"])
def test_a_name_cannot_forge_a_line(log, line_break):
    (record,) = log([run(name=f"a{line_break}[INFO] forged", owner=f"b{line_break}")])

    assert record.getMessage().isprintable()


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_no_record_has_arguments_or_options(log, level):
    records = log([run()], level=level)

    assert len(records) == (2 if level == logging.DEBUG else 1)
    assert SECRET not in str([vars(record) for record in records])


def test_a_batch_of_delayed_runs_only_is_not_logged(log):
    assert log([run()], delayed={"run-1": datetime(2026, 11, 21, tzinfo=UTC)}) == []
