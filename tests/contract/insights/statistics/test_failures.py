"""Failed runs by task and error, and the usage of an owner."""

from datetime import timedelta

import pytest

from celery_dynbeat.common.errors import InvalidArgumentError
from celery_dynbeat.insights.history import failures, owner_usage
from celery_dynbeat.store import scans
from tests.support.applications import START
from tests.support.suites import each_database

MINUTE = timedelta(minutes=1)
LATER = START + timedelta(hours=1)


@pytest.fixture
def fail(add_runs):
    """Return a function that inserts runs that failed, a minute after each other."""

    def add(*errors, at=START, **columns):
        failed = {"status": "failed", **columns}
        rows = [
            {**failed, "error": error, "created_at": at + number * MINUTE}
            for number, error in enumerate(errors)
        ]
        return [row["id"] for row in add_runs(rows)]

    return add


def test_failed_runs_are_grouped_by_task_and_error_without_numbers(dynbeat, fail):
    fail("KeyError: 17\nmore", "KeyError: 18", "KeyError: 19\nother")
    [newest] = fail("KeyError: 20", owner="user:7", at=LATER)
    fail("KeyError: 21", task="u", status="lost")
    fail(None, None, task="u", status="succeeded", at=LATER)

    found = failures(dynbeat.context, since=START)
    (largest, other) = found.groups

    assert (largest.task, largest.error, largest.count) == ("t", "KeyError: 20", 4)
    assert (largest.schedules, largest.owners) == (2, 2)
    assert (largest.first_at, largest.last_at) == (START, LATER)
    assert (other.task, other.count, found.exact) == ("u", 1, True)
    assert largest.newest_run == newest


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [
        pytest.param(
            "0b9a4c52-9d3e-4f0b-8a52-1c34be0cd001",
            "ffffffff-9d3e-4f0b-8a52-1c34be0cd00f",
            1,
            id="UUIDs",
        ),
        pytest.param("a3f9c1", "0b77de", 1, id="hexadecimal"),
        pytest.param("job_a3f9c1deadbeef.csv", "job_ffff00010203.csv", 1, id="part of a name"),
        pytest.param("decade", "facade", 2, id="words"),
    ],
)
def test_errors_that_differ_only_in_random_ids_are_one(dynbeat, fail, first, second, count):
    fail(f"no user {first}")
    fail(f"no user {second}", at=LATER)

    assert len(failures(dynbeat.context, since=START).groups) == count


def test_a_rerun_that_succeeded_leaves_the_count(dynbeat, fail):
    repaired, broken = fail("KeyError: 1", "KeyError: 2")
    fail("KeyError: 1", at=LATER, rerun_of=repaired)
    fail(None, status="succeeded", at=LATER + MINUTE, rerun_of=repaired)
    fail("KeyError: 2", at=LATER + 2 * MINUTE, rerun_of=broken)

    (found,) = failures(dynbeat.context, since=START).groups

    assert (found.count, found.error) == (2, "KeyError: 2")


@each_database
def test_owner_task_and_time_limit_the_failures(dynbeat, fail):
    fail("x")
    fail("x", owner="user:7", task="u")
    fail("y", at=LATER)

    def errors(**filters):
        return [each.error for each in failures(dynbeat.context, **filters).groups]

    assert errors(since=START, owner="user:7") == ["x"]
    assert errors(since=START, task="t") == ["x", "y"]
    assert errors(since=LATER) == ["y"]
    assert errors(since=START, until=LATER) == ["x", "x"]
    with pytest.raises(InvalidArgumentError):
        errors(since=START.replace(tzinfo=None))


@pytest.mark.parametrize("owner", [None, "user:42"])
@each_database
def test_a_search_that_ends_early_says_so(dynbeat, fail, monkeypatch, owner):
    fail(*(f"error {number}" for number in range(4)))
    monkeypatch.setattr(scans, "MAX_SCANNED", 3)

    found = failures(dynbeat.context, since=START, owner=owner)

    assert ([each.count for each in found.groups], found.exact) == ([3], False)
    assert failures(dynbeat.context, since=START + MINUTE, owner=owner).groups[0].count == 3


@each_database
def test_the_usage_of_an_owner_counts_its_runs_by_outcome(dynbeat, fail):
    fail("x", sent_at=START + timedelta(seconds=2))
    fail(None, status="succeeded", at=LATER, sent_at=LATER + timedelta(seconds=1))
    fail(None, status="skipped", at=LATER + MINUTE, attempt=0)
    fail("x", owner="user:7")

    found = owner_usage(dynbeat.context, owner="user:42", since=START, until=LATER + 2 * MINUTE)

    assert [str(each) for each in (found.runs, found.failed, found.skipped)] == ["2", "1", "1"]
    assert [each.total_seconds() for each in (found.lag_p50, found.lag_p99)] == [1.0, 2.0]
    none = owner_usage(
        dynbeat.context, owner="user:42", since=START - 2 * MINUTE, until=START - MINUTE
    )
    assert (str(none.runs), none.lag_p99) == ("0", None)
