"""Each query of a pass uses an index, for any number of schedules."""

import json
from functools import partial

import pytest
from sqlalchemy import select, text

from celery_dynbeat.db.models import Schedule
from celery_dynbeat.store.schedules import due
from tests.support.applications import START, application, execute
from tests.support.executed_statements import record_selects
from tests.support.number_rows import numbers
from tests.support.servers.mysql import is_mysql

ROWS = 100_000
CROWD = """
    INSERT INTO dynbeat_schedule (owner, name, task, trigger_kind, trigger_spec, next_run_at)
    SELECT 'crowd', CONCAT('n', n), 't', 'every', 'PT1H', {at} FROM {sequence}
"""
AT = {
    "postgresql": "TIMESTAMPTZ '2026-11-21 08:00:00Z' + n * INTERVAL '1 second'",
    "mariadb": "TIMESTAMP '2026-11-21 08:00:00' + INTERVAL n SECOND",
}
STATES = {
    "some are due": "UPDATE dynbeat_schedule SET version = 1 WHERE 0 = 1",
    "all are paused": "UPDATE dynbeat_schedule SET enabled = {false}, next_run_at = NULL",
    "all are far in the future": "UPDATE dynbeat_schedule SET next_run_at = '2090-01-01'",
}


@pytest.fixture(params=["postgresql", "mariadb"])
def kind(request):
    return request.param


@pytest.fixture(params=STATES)
def crowded(request, kind):
    with application(request.getfixturevalue(f"{kind}_url")) as dynbeat:
        dynbeat.context.prepare()
        execute(dynbeat, CROWD.format(at=AT[kind], sequence=numbers(kind, rows=ROWS)))
        execute(dynbeat, STATES[request.param].format(false="FALSE"))
        analyze = "ANALYZE" if kind == "postgresql" else "ANALYZE TABLE dynbeat_schedule"
        execute(dynbeat, analyze)
        yield dynbeat


def executed(dynbeat, work):
    """Return the only SELECT of a table that ``work`` executes."""
    with record_selects(dynbeat.context.database.engine) as selects:
        dynbeat.context.database.run(work)
    (statement,) = [each for each in selects if "dynbeat_schedule" in str(each)]
    return statement


def explained(dynbeat, kind, statement):
    engine = dynbeat.context.database.engine
    sql = statement.compile(engine, compile_kwargs={"literal_binds": True}).string
    form = "EXPLAIN (FORMAT JSON) " if kind == "postgresql" else "EXPLAIN FORMAT=JSON "
    with engine.connect() as connection:
        if is_mysql(connection.dialect):
            connection.exec_driver_sql("SET SESSION explain_json_format_version = 1")
        found = connection.execute(text((form + sql).replace(":", r"\:"))).scalar_one()
    return json.loads(found) if isinstance(found, str) else found


def nodes(plan):
    """Return every dict in a plan, at any depth."""
    if isinstance(plan, dict):
        yield plan
    for part in plan.values() if isinstance(plan, dict) else plan:
        if isinstance(part, dict | list):
            yield from nodes(part)


def reads_all(plan):
    """Return the nodes of the plan that read every row of a table or sort rows."""
    return [
        node
        for node in nodes(plan)
        if node.get("Node Type") in {"Seq Scan", "Sort"}
        or node.get("access_type") == "ALL"
        or "filesort" in node
        or node.get("using_filesort")
    ]


def test_the_claim_reads_the_start_of_an_index(crowded, kind):
    claim = executed(crowded, partial(due.lock_due, now=START, limit=1_000))
    plan = explained(crowded, kind, claim)

    assert [node for node in reads_all(plan) if not is_empty_table(node)] == []
    # The check itself: it detects a query without an index.
    assert reads_all(explained(crowded, kind, select(Schedule.id).where(Schedule.task == "x")))


def test_the_ends_of_pauses_are_read_from_the_start_of_an_index(crowded, kind):
    ended = executed(crowded, partial(due.lock_ended_pauses, now=START, limit=1_000))
    plan = explained(crowded, kind, ended)

    assert [node for node in reads_all(plan) if not is_empty_table(node)] == []


def test_the_query_of_pending_work_reads_the_starts_of_indexes(crowded, kind):
    reached = due.Watermark(no_due_before=START, no_overdue_before=START)

    for watermark in (due.NO_WATERMARK, reached):
        poll = partial(due.read_pending, now=START, until=START, watermark=watermark)
        plan = explained(crowded, kind, executed(crowded, poll))

        assert [node for node in reads_all(plan) if not is_empty_table(node)] == []


def is_empty_table(node):
    # There are no runs and holds here: reading and sorting these tables costs nothing.
    of = " ".join(node.get("Sort Key", []))
    table = str(node.get("Relation Name", node.get("table_name", of)))
    return any(name in table for name in ("run", "hold"))
