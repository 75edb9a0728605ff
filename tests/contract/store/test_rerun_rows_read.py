"""Each query of a rerun reads a bounded number of rows of a long history."""

from datetime import timedelta

import pytest

from celery_dynbeat.api import batches
from celery_dynbeat.testing import FrozenClock
from tests.support.applications import MINUTELY, START, application, execute
from tests.support.executed_statements import record_statements
from tests.support.number_rows import numbers

ROWS = 30_000
#: Rows of history that a search reads at once here.
SEARCHED = 200
SECONDS = {
    "postgresql": "TIMESTAMPTZ '{start}Z' + n * INTERVAL '1 second'",
    "mariadb": "TIMESTAMP '{start}' + INTERVAL n SECOND",
}
# The ids have the times of the fire times, as those of beat.
MILLISECONDS = int(START.timestamp()) * 1000
HEX = {
    "postgresql": f"LPAD(TO_HEX({MILLISECONDS} + n * 1000), 12, '0')",
    "mariadb": f"LOWER(LPAD(HEX({MILLISECONDS} + n * 1000), 12, '0'))",
}
ID = "CONCAT(SUBSTR({hex}, 1, 8), '-', SUBSTR({hex}, 9, 4), '-7000-8000-000000000000')"
# One run in 10,000 failed. The other owner has half of the runs.
HISTORY = """
    INSERT INTO dynbeat_run
        (id, schedule_id, owner, name, task, fire_at, status, origin, created_at, finished_at)
    SELECT {id}, schedule.id, schedule.owner, schedule.name, 't', {at},
        CASE WHEN n % 10000 < 2 THEN 'failed' ELSE 'succeeded' END, 'schedule', {at}, {at}
    FROM {sequence} JOIN dynbeat_schedule AS schedule
        ON schedule.owner = CASE WHEN n % 2 = 0 THEN 'user:42' ELSE 'user:7' END
"""


@pytest.fixture(params=["postgresql", "mariadb"])
def kind(request):
    return request.param


@pytest.fixture
def long_history(request, kind):
    """Give an application with 30,000 ended runs of two owners, six of which failed."""
    clock = FrozenClock(START)
    with application(request.getfixturevalue(f"{kind}_url"), clock=clock) as dynbeat:
        dynbeat.context.prepare()
        for owner in ("user:42", "user:7"):
            mine = dynbeat.schedules.for_owner(owner)
            mine.create("n", task="t", trigger=MINUTELY, start_at=START + timedelta(days=9))
        given = {
            "id": ID.format(hex=HEX[kind]),
            "at": SECONDS[kind].format(start=f"{START:%Y-%m-%d %H:%M:%S}"),
            "sequence": numbers(kind, rows=ROWS),
        }
        if kind == "postgresql":
            given["id"] = f"CAST({given['id']} AS uuid)"
        execute(dynbeat, HISTORY.format(**given))
        clock.advance(timedelta(days=1))
        yield dynbeat, clock


@pytest.mark.parametrize("scope", ["everything", "owner", "schedule"])
def test_a_search_reads_the_history_once_in_bounded_parts(long_history, monkeypatch, scope):
    monkeypatch.setattr(batches, "SEARCHED_AT_ONCE", SEARCHED)
    dynbeat, _ = long_history
    mine = dynbeat.schedules.for_owner("user:42")
    calls = dynbeat.schedules if scope == "everything" else mine
    given = {"name": "n"} if scope == "schedule" else {}
    since = START + timedelta(seconds=ROWS - 10 * SEARCHED)

    with record_statements(dynbeat.context.database.engine) as statements:
        result = calls.rerun_many(since=since, **given)

    assert result.total == 1
    assert max(each.rows for each in statements) <= 2 * SEARCHED
    # Each part is read twice: for its end, and for the runs that match.
    assert sum(each.rows for each in statements) <= 3 * 10 * SEARCHED


def test_the_reruns_of_a_search_read_their_runs_by_id(long_history):
    dynbeat, _ = long_history
    mine = dynbeat.schedules.for_owner("user:42")
    assert dynbeat.schedules.rerun_many(since=START).total == 6

    with record_statements(dynbeat.context.database.engine) as statements:
        found = mine.rerun_many(since=START, until=START + timedelta(seconds=SEARCHED))

    assert found.total == 0
    assert sum(each.rows for each in statements) <= 3 * SEARCHED


def test_a_single_rerun_reads_few_rows(long_history):
    dynbeat, _ = long_history
    mine = dynbeat.schedules.for_owner("user:42")
    (*_, failed) = mine.runs("n", status="failed", limit=10)

    with record_statements(dynbeat.context.database.engine) as statements:
        mine.rerun(failed.id)

    assert statements
    assert sum(each.rows for each in statements) < 50
