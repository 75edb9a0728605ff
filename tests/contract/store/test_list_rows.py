"""The rows that a page and a count of schedules read: bounded, at any position of the list."""

import itertools

import pytest

from celery_dynbeat.store import scans
from tests.contract.store.test_rows_read import instants
from tests.support.applications import application, execute
from tests.support.executed_statements import record_statements
from tests.support.number_rows import numbers

ROWS = 20_000
#: Rows that one page may scan. Less than the rows of each large set.
SCANNED = 300
LIMIT = 10
#: A probe, the keys of a small set, the end of the scan, and the page.
MOST = 5 * SCANNED
# Of 100 schedules one is paused, one is finished, one failed; few are quarantined or overdue.
SCHEDULES = """
    INSERT INTO dynbeat_schedule
        (owner, name, task, trigger_kind, trigger_spec, enabled, error, finished_at, failing_since,
         next_fire_at, next_run_at)
    SELECT CONCAT('user:', n % {owners}), CONCAT('n', n), 't', 'interval', 'PT1M',
        n % 100 <> 1,
        CASE WHEN n % 1000 = 2 THEN 'x' END,
        CASE WHEN n % 100 = 3 THEN {now} END,
        CASE WHEN n % 100 IN (1, 4) THEN {now} END,
        {now},
        CASE WHEN n % 100 IN (1, 3) OR n % 1000 = 2 THEN NULL
             WHEN n % 1000 = 5 THEN {now} ELSE {later} END
    FROM {sequence}
"""
STATES = (None, "active", "paused", "finished", "quarantined", "held", "overdue", "failing")
TIMED = (None, "active", "overdue", "failing")


@pytest.fixture(params=["postgresql", "mariadb"])
def dynbeat(request):
    kind = request.param
    with application(request.getfixturevalue(f"{kind}_url")) as dynbeat:
        dynbeat.context.prepare()
        sequence = numbers(kind, rows=ROWS)
        # One owner has a large part of the schedules.
        statement = SCHEDULES.format(sequence=sequence, owners=3, **instants(kind))
        execute(dynbeat, statement)
        execute(dynbeat, f"ANALYZE {'TABLE' if kind == 'mariadb' else ''} dynbeat_schedule")
        execute(dynbeat, "INSERT INTO dynbeat_hold (owner) VALUES ('user:2')")
        yield dynbeat


def combinations():
    for state, order, prefix in itertools.product(STATES, ("name", "next_run_at"), (None, "n1")):
        if order == "name" or state in TIMED:
            yield {"state": state, "order": order, "name_prefix": prefix}


def read_of(statements, call, **how):
    before = len(statements)
    found = call(**how)
    return found, sum(each.rows for each in statements[before:])


def test_each_page_and_count_reads_a_bounded_number_of_rows(dynbeat, monkeypatch):
    monkeypatch.setattr(scans, "MAX_SCANNED", SCANNED)
    excessive = {}
    dynbeat.schedules.list()
    scopes = ({}, {"owner": "user:1"}, {"owner_prefix": "user:1"})
    with record_statements(dynbeat.context.database.engine) as statements:
        for how, scope in itertools.product(combinations(), scopes):
            filters, calls, cursor = {**how, **scope}, dynbeat.schedules, None
            for _ in range(4):
                page, rows = read_of(statements, calls.list, limit=LIMIT, after=cursor, **filters)
                cursor = page.cursor
                if rows > MOST:
                    excessive[str(filters)] = rows
                if cursor is None:
                    break
            del filters["order"]
            _, rows = read_of(statements, calls.count, **filters)
            if rows > MOST:
                excessive[str(filters), "count"] = rows

    assert excessive == {}
