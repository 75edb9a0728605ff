"""runs --errors."""

from datetime import timedelta

import pytest
from sqlalchemy import insert

from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.db.models import Run
from celery_dynbeat.store import scans


@pytest.fixture
def fail(dynbeat):
    """Return a function that inserts a run of now that failed."""

    def add(error, *, owner="user:42", task="t"):
        at = dynbeat.context.clock.now()
        row = {
            "id": new_run_id(at),
            "owner": owner,
            "name": "n",
            "task": task,
            "status": "failed",
            "origin": "schedule",
            "fire_at": at,
            "created_at": at,
            "finished_at": at,
            "error": error,
        }
        with dynbeat.context.database.engine.begin() as connection:
            connection.execute(insert(Run), row)

    return add


def test_failed_runs_are_counted_by_task_and_error(shown, as_json, fail, clock):
    fail("KeyError: 1\n...")
    first = f"{clock.now():%Y-%m-%dT%H:%M:%SZ}"
    clock.advance(timedelta(seconds=1))
    fail("KeyError: 1\n...", owner="user:7")
    fail("no", task="u")

    last = f"{clock.now():%Y-%m-%dT%H:%M:%SZ}"
    assert (
        shown("runs", "--errors", "--all-owners")[0]
        == f"2\tt\tKeyError: 1\tuser:7/n, user:42/n\t2\t2\t{first}\t{last}"
    )
    assert [each["count"] for each in as_json("runs", "--errors", "--all-owners")] == [2, 1]
    assert len(shown("runs", "--errors", "--owner", "user:7")) == 1
    assert shown("runs", "--errors", "--owner", "user:42", "--task", "u", "--since", "1h")[
        0
    ].startswith("1\tu\tno")


def test_a_search_that_ends_early_is_said(command, fail, monkeypatch):
    fail("a")
    fail("b")
    monkeypatch.setattr(scans, "MAX_SCANNED", 1)

    assert "there may be more" in command("runs", "--errors", "--all-owners").stderr
