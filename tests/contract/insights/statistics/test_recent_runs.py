"""The last runs of many schedules are those that a search through all rows finds."""

import random
from datetime import timedelta

import pytest

from celery_dynbeat.db.models import Run
from celery_dynbeat.insights.history import RecentRun, recent_runs
from tests.support.applications import MINUTELY, START

SECOND = timedelta(seconds=1)


@pytest.fixture
def ids(dynbeat, mine):
    """Return the ids of 120 schedules: more than one statement reads."""
    given = {"owner": "user:42", "task": "t", "trigger": MINUTELY}
    dynbeat.schedules.create_many({"name": f"n{index}", **given} for index in range(120))
    return [each.id for each in mine.list(limit=120)]


def random_runs(ids):
    chance = random.Random(7)  # noqa: S311 - repeatable
    for schedule_id in ids:
        for at in chance.sample(range(-500, 20), chance.randint(0, 12)):
            fire_time = START + at * SECOND
            sent_at = fire_time + chance.random() * SECOND
            started_at = sent_at + (chance.random() - 0.1) * SECOND
            yield {
                "schedule_id": schedule_id,
                "created_at": min(fire_time, START),
                "fire_at": fire_time,
                "status": chance.choice(["succeeded", "failed", "running", "skipped"]),
                "origin": chance.choice(["schedule", "manual", "backfill"]),
                "fire_count": chance.randint(1, 3),
                "attempt": chance.choice([1, 1, 2]),
                "sent_at": chance.choice([sent_at, None]),
                "started_at": chance.choice([started_at, None]),
                # The clocks of two hosts differ.
                "finished_at": chance.choice([started_at + SECOND, started_at - SECOND, None]),
                "error": chance.choice([None, "E" * 150, "é" * 500]),
                "traceback": "T" * 1_000,
            }


def expected(rows, schedule_id, *, limit):
    """Return what the oracle finds: the same by a search through all rows."""
    of_one = [row for row in rows if row.schedule_id == schedule_id and row.fire_at <= START]
    newest = sorted(of_one, key=lambda row: row.fire_at)[-limit:]
    return [
        RecentRun(
            id=row.id,
            status=row.status,
            attempt=row.attempt,
            origin=row.origin,
            fire_at=row.nominal_at or row.fire_at,
            fire_count=row.fire_count,
            lag=row.sent_at and row.sent_at - row.fire_at,
            queue_time=(
                max(row.started_at - row.sent_at, 0 * SECOND)
                if row.sent_at and row.started_at and row.attempt == 1
                else None
            ),
            duration=(
                max(row.finished_at - row.started_at, 0 * SECOND)
                if row.started_at and row.finished_at
                else None
            ),
            error=row.error and row.error[:200],
        )
        for row in newest
    ]


@pytest.mark.parametrize("limit", [1, 5, 30])
def test_the_last_runs_of_each_schedule(dynbeat, ids, add_runs, all_rows, limit):
    add_runs(random_runs(ids))
    unknown = max(ids) + 1

    found = recent_runs(dynbeat.context, schedule_ids=[*ids, unknown], limit=limit)

    rows = all_rows(Run)
    assert found == {each: expected(rows, each, limit=limit) for each in [*ids, unknown]}
