"""The rows of create_many have the columns of create, whichever of them are NULL."""

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from celery_dynbeat.db.models import SCHEDULES
from tests.support.applications import MINUTELY, START
from tests.support.suites import each_database

PLAIN = {"task": "t", "trigger": MINUTELY}
FULL = PLAIN | {
    "start_at": START.replace(year=2027),
    "end_at": START.replace(year=2028),
    "max_runs": 3,
    "catch_up": "all",
    "expires_after": 60,
    "window": 0,
    "on_lost": "rerun",
    "finish_within": 60,
    "enabled": False,
}


def columns(dynbeat, owner):
    statement = select(SCHEDULES).where(SCHEDULES.c.owner == owner).order_by(SCHEDULES.c.name)
    with Session(dynbeat.context.database.engine) as session:
        rows = [dict(row) for row in session.execute(statement).mappings()]
    return [{key: row[key] for key in row if key not in {"id", "owner"}} for row in rows]


@pytest.mark.parametrize(
    "given",
    [[PLAIN, PLAIN], [FULL, FULL], [PLAIN, FULL], [FULL, PLAIN]],
    ids=["null", "set", "null-set", "set-null"],
)
@each_database
def test_rows_of_create_many_equal_those_of_create(dynbeat, given):
    one = dynbeat.schedules.for_owner("one")
    for number, fields in enumerate(given):
        one.create(f"n{number}", **fields)

    dynbeat.schedules.create_many(
        {"owner": "many", "name": f"n{number}", **fields} for number, fields in enumerate(given)
    )

    assert columns(dynbeat, "many") == columns(dynbeat, "one")
    assert len(columns(dynbeat, "one")) == len(given)
