"""The cost of the queries of ``dynbeat status`` does not grow with the number of rows."""

from datetime import UTC, datetime
from functools import partial

import pytest
from sqlalchemy import select

from celery_dynbeat.db.models import Schedule
from celery_dynbeat.store import health
from tests.support.applications import application, execute
from tests.support.executed_statements import record_statements

ROWS = 20_000
MANY = f"""
    INSERT INTO dynbeat_schedule (owner, name, task, trigger_kind, trigger_spec, next_run_at)
    SELECT 'crowd', 'n' || n, 't', 'every', 'PT1H', TIMESTAMPTZ '2026-11-21 08:00:00Z'
      + n * INTERVAL '1 second' FROM generate_series(1, {ROWS}) AS s(n)
"""
HISTORY = f"""
    INSERT INTO dynbeat_run
      (id, schedule_id, owner, name, task, fire_at, status, finished_at, overdue_at)
    SELECT gen_random_uuid(), n, 'crowd', 'n', 't', clock_timestamp(), {{status}}, {{finished}},
        {{overdue}}
      FROM generate_series(1, {ROWS}) AS s(n)
"""
HOLDS = f"""
    INSERT INTO dynbeat_hold (owner, everything)
    SELECT NULLIF('user:' || n, 'user:1'), NULLIF(n = 1, false)
      FROM generate_series(1, {ROWS}) AS s(n)
"""
LOADS = (
    MANY,
    HISTORY.format(status="'succeeded'", finished="now()", overdue="NULL"),
    HISTORY.format(status="'sent'", finished="NULL", overdue="'2026-11-20'"),
    "UPDATE dynbeat_schedule SET failing_since = next_run_at, next_run_at = NULL WHERE id % 2 = 0",
    HOLDS,
    "ANALYZE",
)


@pytest.fixture
def full_tables(postgresql_url):
    with application(postgresql_url) as dynbeat:
        dynbeat.context.prepare()
        for statement in LOADS:
            execute(dynbeat, statement)
        yield dynbeat


def rows_read(dynbeat, query):
    """Return the largest number of rows that PostgreSQL reads in one step, by statement."""
    database = dynbeat.context.database
    with record_statements(database.engine) as statements:
        database.read_in_transaction(query)
    return {each.sql: max(map(rows_of, steps(each.plan))) for each in statements}


def rows_of(step):
    return step["Actual Rows"] + step.get("Rows Removed by Filter", 0)


def steps(plan):
    """Return all steps of a plan."""
    return [plan, *(step for part in plan.get("Plans", []) for step in steps(part))]


def most(sql):
    """Return how many rows a statement may read."""
    if "failing_since" in sql:
        # The finished and paused ones among them are not counted.
        return health.MAX_FAILING_READ
    if "GROUP BY anon_1.status" in sql:
        return health.MAX_RUNS_READ + 1
    if "overdue_at" in sql and "JOIN" in sql:
        return 2 * health.MAX_SAMPLE
    # One hold is of everything.
    return health.MAX_COUNTED + 2


def test_no_query_reads_more_rows_than_it_counts(full_tables):
    now = datetime(2026, 11, 22, 12, tzinfo=UTC)
    queries = (
        partial(health.read, now=now, nodes_since=now),
        partial(health.sample_due, with_arguments=True),
        partial(health.sample_waiting, with_arguments=True),
    )

    read = {}
    for query in queries:
        read |= rows_read(full_tables, query)

    assert {sql: rows for sql, rows in read.items() if rows > most(sql)} == {}
    # As many statements are bounded by what they count: due, overdue, holds and more.
    assert sum(rows > health.MAX_COUNTED for rows in read.values()) > len(queries)

    # Check the measurement: a query that reads all rows is detected.
    everything = select(Schedule.id).where(Schedule.task == "x")
    rows = rows_read(full_tables, lambda session: session.execute(everything)).values()
    assert max(rows) == ROWS
