"""Failed runs by task and error, and the usage of an owner."""

from datetime import timedelta

import pytest

from celery_dynbeat.common.errors import InvalidArgumentError
from celery_dynbeat.insights.history import failures
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
