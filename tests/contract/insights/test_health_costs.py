"""The cost of the queries of ``dynbeat status`` does not grow with the number of rows."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import select, text

from celery_dynbeat.db.models import Schedule
from celery_dynbeat.store import health, nodes
from celery_dynbeat.store.health import MAX_COUNTED
from celery_dynbeat.store.schedules.stopped_schedules import (
    MAX_FAILING_READ,
    failing_statement,
    hold_of_everything_statement,
    holds_of_owners_statement,
)
from tests.support.applications import application, execute

ROWS = 20_000
MANY = f"""
    INSERT INTO dynbeat_schedule (owner, name, task, trigger_kind, trigger_spec, next_run_at)
    SELECT 'crowd', 'n' || n, 't', 'every', 'PT1H', TIMESTAMPTZ '2026-11-21 08:00:00Z'
      + n * INTERVAL '1 second' FROM generate_series(1, {ROWS}) AS s(n)
"""
HISTORY = f"""
    INSERT INTO dynbeat_run
      (id, schedule_id, owner, name, task, scheduled_for, status, finished_at, overdue_at)
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


def rows_read(dynbeat, statement):
    """Return the largest number of rows that PostgreSQL reads in one step of the plan."""
    engine = dynbeat.context.database.engine
    sql = statement.compile(engine, compile_kwargs={"literal_binds": True}).string
    with engine.connect() as connection:
        # As health.read does.
        connection.execute(text("SET LOCAL enable_seqscan = off"))
        form = "EXPLAIN (ANALYZE, FORMAT JSON) "
        (found,) = connection.execute(text((form + sql).replace(":", r"\:"))).scalar_one()
    return max(step["Actual Rows"] + step.get("Rows Removed by Filter", 0) for step in steps(found))


def steps(plan):
    """Return all steps of a plan."""
    if "Plan" in plan:
        return steps(plan["Plan"])
    return [plan, *(step for part in plan.get("Plans", []) for step in steps(part))]


def test_no_query_reads_more_rows_than_it_counts(full_tables):
    now = datetime(2026, 11, 22, 12, tzinfo=UTC)
    statements = {
        "due": health.due_times_statement(now=now),
        "overdue": health.overdue_statement(now=now),
        "holds": holds_of_owners_statement(now=now, limit=MAX_COUNTED + 1),
        "hold of everything": hold_of_everything_statement(now=now),
        "next due": nodes.due_statement(with_arguments=True),
    }

    read = {name: rows_read(full_tables, statement) for name, statement in statements.items()}

    # One hold is of everything.
    assert max(read.values()) <= MAX_COUNTED + 2, read
    waiting = nodes.waiting_statement(with_arguments=True)
    assert rows_read(full_tables, waiting) <= 2 * nodes.MAX_SAMPLE
    unfinished = health.runs_statement(full_tables.context.database.capabilities)
    assert rows_read(full_tables, unfinished) <= health.MAX_RUNS_READ + 1
    # The finished and paused ones among them are not counted.
    assert rows_read(full_tables, failing_statement(limit=MAX_COUNTED + 1)) <= MAX_FAILING_READ
    # Check the measurement: a query that reads all rows is detected.
    assert rows_read(full_tables, select(Schedule.id).where(Schedule.task == "x")) == ROWS
