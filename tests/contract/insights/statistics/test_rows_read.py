"""The statistics of a page read a bounded number of rows, however many there are."""

from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import insert, text

from celery_dynbeat.common.filters import ScheduleFilter
from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.db.models import Run
from celery_dynbeat.insights import installation, lists
from celery_dynbeat.insights.history import recent_runs
from celery_dynbeat.store import health, rollups, scans
from tests.contract.store.test_list_rows import SCHEDULES
from tests.contract.store.test_rows_read import instants
from tests.support.applications import START, application, execute
from tests.support.executed_statements import record_statements
from tests.support.number_rows import numbers

ROWS = 20_000
#: The limit of the queries in this test.
FEW = 200
#: A statement may read a row again from a temporary table, but never a whole table.
MOST = ROWS // 5
LIMITS = {
    (health, "MAX_LATE_READ"),
    (health, "MAX_COUNTED"),
    (health, "MAX_RUNS_READ"),
    (health, "MAX_FAILING_READ"),
    (health, "MAX_SAMPLE"),
    (scans, "MAX_SCANNED"),
    (installation, "MAX_SCHEDULES"),
    (lists, "MAX_UNCOVERED"),
    (rollups, "MAX_LIVE_RUNS"),
}
PLANS = {"postgresql": "ANALYZE", "mariadb": "ANALYZE TABLE dynbeat_schedule, dynbeat_run"}


def runs():
    """Yield runs of the last hour: the newest have not started, of the others some failed."""
    for number in range(ROWS):
        created = START - timedelta(hours=1) * (ROWS - number) / ROWS
        is_unstarted = number > ROWS // 2
        status = "sent" if is_unstarted else "failed" if number % 10 == 0 else "succeeded"
        yield {
            "id": new_run_id(created),
            "schedule_id": number % 50 + 1,
            "owner": "user:1",
            "name": "n",
            "task": "t",
            "fire_at": created,
            "status": status,
            "created_at": created,
            "sent_at": created,
            "overdue_at": created if is_unstarted else None,
            "finished_at": None if is_unstarted else created,
        }


@pytest.fixture(params=["postgresql", "mariadb"])
def dynbeat(request, monkeypatch):
    kind = request.param
    for module, name in LIMITS:
        monkeypatch.setattr(module, name, FEW)
    with application(request.getfixturevalue(f"{kind}_url")) as dynbeat:
        dynbeat.context.prepare()
        sequence = numbers(kind, rows=ROWS)
        execute(dynbeat, SCHEDULES.format(sequence=sequence, owners=5_000, **instants(kind)))
        execute(dynbeat, "INSERT INTO dynbeat_hold (owner) VALUES ('user:2')")
        with dynbeat.context.database.engine.begin() as connection:
            connection.execute(insert(Run), list(runs()))
            connection.execute(text(PLANS[kind]))
        yield dynbeat


def read(query, **given):
    """Return a call that makes a query of ``dynbeat status``."""
    return lambda context: context.database.read_in_transaction(partial(query, **given))


CALLS = {
    "status": read(health.read, now=START, nodes_since=START),
    "status: due": read(health.sample_due, with_arguments=True),
    "status: waiting": read(health.sample_waiting, with_arguments=True),
    "recent runs": lambda context: recent_runs(context, schedule_ids=range(1, 51), limit=10),
    "overview": installation.overview,
    "nodes": installation.nodes,
    "banners": installation.banners,
    "state counts": lists.state_counts,
    "state counts of an owner": lambda context: lists.state_counts(
        context, ScheduleFilter(owner="user:1")
    ),
    "state counts of a tag": lambda context: lists.state_counts(
        context, ScheduleFilter(tag="vip", name_prefix="n1")
    ),
    "owners": lists.owners,
    "tasks": lambda context: lists.tasks(context, prefix="t"),
}


def test_no_statement_reads_a_whole_table(dynbeat):
    with record_statements(dynbeat.context.database.engine) as statements:
        excessive, numbers = {}, {}
        for name, call in CALLS.items():
            before = len(statements)
            call(dynbeat.context)
            numbers[name] = len(statements) - before
            for each in statements[before:]:
                if each.rows > MOST:
                    excessive[name, each.sql] = each.rows
        execute(dynbeat, "UPDATE dynbeat_run SET error = 'x' WHERE task = 'none'")

    assert excessive == {}
    # PostgreSQL needs one more, for the settings of the transaction.
    assert numbers["recent runs"] <= 2
    assert numbers["banners"] <= 3
    assert max(numbers.values()) < 60
    # The check itself: it detects a query without an index.
    assert statements[-1].rows >= ROWS
