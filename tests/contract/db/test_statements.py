"""Many rows in one statement: each row gets its own values, with any text in them."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.db import statements
from celery_dynbeat.db.models import Run, Schedule
from tests.support.applications import MINUTELY, START
from tests.support.suites import each_database

#: Texts that JSON, SQL or a driver might misinterpret.
TEXTS = (
    "",
    "NULL",
    '{"a","b"}',
    "a,b",
    'say "hi"',
    "back\\slash",
    "it's",
    "%s :id",
    "ß ☃ 😀",
    "x\ny",
)
LATE = datetime(2099, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


@pytest.fixture
def session(dynbeat):
    with Session(dynbeat.context.database.engine) as made:
        yield made


@pytest.fixture
def rows(mine):
    """Create one schedule for each text, and return their ids."""
    for number in range(len(TEXTS)):
        mine.create(f"{number}", task="t", trigger=MINUTELY)
    page = mine.list(limit=100)
    return [info.id for info in page]


@each_database
def test_each_row_gets_its_own_values(session, rows):
    changes = [
        {
            "id": row_id,
            "error": text,
            "next_run_at": None,
            "last_run_at": LATE if number % 2 else None,
            "run_count": 2**40 + number,
        }
        for number, (row_id, text) in enumerate(zip(rows, TEXTS, strict=True))
    ]

    statements.update_each(session, Schedule.__table__, changes)

    columns = (Schedule.id, Schedule.error, Schedule.last_run_at, Schedule.run_count)
    found = {row.id: row for row in session.execute(select(*columns))}
    for change in changes:
        row = found[change["id"]]
        assert (row.error, row.last_run_at) == (change["error"], change["last_run_at"])
        assert row.run_count == change["run_count"]


def record(schedule_id, text, **columns):
    return {
        "id": new_run_id(START),
        "schedule_id": schedule_id,
        "owner": text,
        "name": text,
        "task": text,
        "fire_at": START,
        "status": "pending",
        "error": text,
        "overdue_at": None,
        **columns,
    }


@each_database
def test_new_rows_are_inserted_and_existing_ones_skipped(session, rows):
    there = [record(row_id, text) for row_id, text in zip(rows, TEXTS, strict=True)]
    assert statements.insert_new(session, Run.__table__, there[:4]) in {4, -1}

    again = [record(row_id, "again") for row_id in rows[:4]]
    added = statements.insert_new(session, Run.__table__, [*again, *there[4:]])

    assert added == len(TEXTS) - 4
    columns = (Run.id, Run.owner, Run.error, Run.fire_at)
    found = {row.id: row for row in session.execute(select(*columns))}
    assert found.keys() == {row["id"] for row in there}
    for row in there:
        assert (found[row["id"]].owner, found[row["id"]].error) == (row["owner"], row["error"])


@each_database
def test_is_among_finds_the_rows_with_the_given_ids(session, rows):
    key, capabilities = Schedule.__table__.c.id, statements.capabilities_in(session)
    wanted = statements.among_parameter(capabilities, [*rows[:3], 10**9])

    found = session.scalars(select(key).where(statements.is_among(capabilities, key)), wanted)

    assert sorted(found) == sorted(rows[:3])
