"""``dynbeat cancel``."""

from datetime import timedelta

import pytest

from tests.support.applications import MINUTELY
from tests.support.suites import each_database

OWNER = ("--owner", "user:42")


@pytest.fixture
def runs(mine, clock, beat):
    """Return the ids of three sent runs of schedule n, the newest first."""
    mine.create("n", task="t", trigger=MINUTELY)
    for _ in range(3):
        clock.advance(timedelta(minutes=1))
        beat.run_until_idle()
    return [run.id for run in mine.runs("n")]


def statuses(mine):
    return [run.status for run in mine.runs("n")]


def test_runs_are_cancelled_by_their_ids(shown, mine, runs):
    lines = shown("cancel", *runs[:2], "--actor", "alice", "--reason", "ticket 12")

    assert lines == [f"cancelled run {run_id} of schedule 'n'" for run_id in runs[:2]]
    assert statuses(mine) == ["revoked", "revoked", "sent"]
    changes = mine.changes("n", action="cancel")
    assert [(each.actor, each.reason) for each in changes] == [("alice", "ticket 12")] * 2


@each_database
def test_all_matching_runs_are_cancelled_after_a_confirmation(shown, as_json, refused, mine, runs):
    assert refused("cancel", "--all", *OWNER)[0] == 2
    assert statuses(mine) == ["sent"] * 3
    assert shown("cancel", "--all", "--task", "u", *OWNER, "--yes") == ["cancelled 0 runs"]

    assert shown("cancel", "--all", "--limit", "1", *OWNER, "--yes") == [
        "cancelled 1 run; more may match: repeat the command"
    ]

    assert as_json("cancel", "--all", "--all-owners", "--since", "1h", "--yes") == [
        {"ok": True, "cancelled": len(runs) - 1}
    ]
    assert statuses(mine) == ["revoked"] * 3
