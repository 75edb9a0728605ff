"""How large the tables are, and what retention will delete."""

from datetime import timedelta

import pytest
from sqlalchemy import text

from celery_dynbeat.store import health
from tests.support.applications import MINUTELY
from tests.support.suites import each_database

DAY = timedelta(days=1)
ANALYZE = {"postgresql": "ANALYZE", "mysql": "ANALYZE TABLE dynbeat_run", "sqlite": "ANALYZE"}


@pytest.fixture
def read(dynbeat, clock):
    """Return a function that reads the size of each table after the database has counted."""

    def tables():
        engine = dynbeat.context.database.engine
        name = "mysql" if engine.dialect.name == "mariadb" else engine.dialect.name
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text(ANALYZE[name]))
        found = dynbeat.context.database.read_in_transaction(
            lambda session: health.table_sizes(session, now=clock.now(), history=DAY, audit=DAY)
        )
        return {each.name: each for each in found}

    return tables


@each_database
def test_each_table_has_rows_and_bytes_and_its_old_rows_are_counted(
    dynbeat, mine, clock, beat, read
):
    mine.create("n", task="t", trigger=MINUTELY, overlap="skip")
    for _ in range(3):
        clock.advance(timedelta(minutes=1))
        beat.run_until_idle()
    clock.advance(2 * DAY)

    found = read()

    run, change = found["dynbeat_run"], found["dynbeat_change"]
    # The first run was sent and has not ended, and the others were skipped.
    assert (run.rows, run.old_rows, change.old_rows) == (3, 2, 1)
    assert (found["dynbeat_node"].old_rows, run.retention) == (None, DAY)
    assert run.exact is (dynbeat.context.database.engine.dialect.name == "sqlite")
    assert all(each.bytes is None or each.bytes > 0 for each in found.values())
