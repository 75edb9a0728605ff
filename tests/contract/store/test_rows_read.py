"""The rows that each statement reads, counted by the database: only as many as it needs."""

import json
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import event, text
from sqlalchemy.orm import Session

from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.store import runs
from celery_dynbeat.store.runs import FIRST_ROWS, MAX_ROWS, unfinished
from celery_dynbeat.testing import FrozenClock, ManualBeat
from tests.support.applications import MINUTELY, START, application, execute
from tests.support.cursors import cursor_after
from tests.support.executed_statements import record_statements
from tests.support.number_rows import numbers
from tests.support.servers.mysql import is_mysql

ROWS = 50_000
DUE = 20
#: A statement may read some rows more than it needs, but never the whole table.
FEW = 5 * DUE
DAY = timedelta(days=1)
# Ids of a distant time, so that the pruner does not read these rows.
ID = "CONCAT('ffffffff-0000-7000-8000-', LPAD(CAST(n AS CHAR(12)), 12, '0'))"
IDS = {"postgresql": f"CAST({ID} AS uuid)", "mariadb": ID}
# Half of the schedules are finished one-offs, the others are due later.
SCHEDULES = """
    INSERT INTO dynbeat_schedule
        (owner, name, task, trigger_kind, trigger_spec, next_fire_at, next_run_at, finished_at)
    SELECT {owner}, CONCAT('n', n), 't', 'once', '2026-11-22T08:00:00+00:00',
        CASE WHEN n % 2 = 0 THEN {later} END,
        CASE WHEN n % 2 = 0 THEN {later} END,
        CASE WHEN n % 2 = 1 THEN {now} END
    FROM {sequence}
"""
HISTORY = """
    INSERT INTO dynbeat_run
        (id, schedule_id, owner, name, task, fire_at, status, origin, finished_at, worker)
    SELECT {id}, {schedule}, 'crowd', CONCAT('n', n), 't', {now}, '{status}', 'schedule',
        {finished_at}, 'w'
    FROM {sequence}
"""
MAKE_DUE = """
    UPDATE dynbeat_schedule SET next_fire_at = {now}, next_run_at = {now} WHERE name IN ({names})
"""


@pytest.fixture(params=["postgresql", "mariadb"])
def kind(request):
    return request.param


def instants(kind):
    zone, type_ = ("Z", "TIMESTAMPTZ") if kind == "postgresql" else ("", "TIMESTAMP")
    days = {"now": START, "later": START + DAY}
    return {name: f"{type_} '{day:%Y-%m-%d %H:%M:%S}{zone}'" for name, day in days.items()}


def fill(dynbeat, kind, *, owner="'crowd'"):
    given = {"sequence": numbers(kind, rows=ROWS), **instants(kind)}
    execute(dynbeat, SCHEDULES.format(owner=owner, **given))
    ended = {"status": "succeeded", "finished_at": given["now"]}
    execute(dynbeat, HISTORY.format(id=IDS[kind], schedule="NULL", **ended, **given))
    for table in ("dynbeat_schedule", "dynbeat_run"):
        execute(dynbeat, f"ANALYZE {'TABLE' if kind == 'mariadb' else ''} {table}")


@contextmanager
def executed(dynbeat):
    """Yield the list of executed statements with their parameters."""
    engine, found = dynbeat.context.database.engine, []

    def note(_connection, _cursor, statement, values, _context, _many):
        found.append((statement, values))

    event.listen(engine, "before_cursor_execute", note)
    yield found
    event.remove(engine, "before_cursor_execute", note)


def rows_read(dynbeat, kind, sql, values):
    """Execute a query and return the number of rows that the database read."""
    engine = dynbeat.context.database.engine
    if is_mysql(engine.dialect):
        # Its plans do not tell the rows that a filter removed.
        with record_statements(engine) as statements, engine.connect() as connection:
            connection.exec_driver_sql(sql, values).all()
        return statements[-1].rows
    form = "EXPLAIN (ANALYZE, FORMAT JSON) " if kind == "postgresql" else "ANALYZE FORMAT=JSON "
    with engine.connect() as connection:
        found = connection.exec_driver_sql(form + sql, values).scalar_one()
    plan = json.loads(found) if isinstance(found, str) else found
    return sum(rows_of(node) for node in nodes(plan))


def rows_of(node):
    if "r_loops" in node:
        # None: this node was never executed.
        return node["r_loops"] * (node.get("r_rows") or 0) if "table_name" in node else 0
    if "Scan" not in node.get("Node Type", ""):
        return 0
    return node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))


def nodes(plan):
    """Return every dict in a plan, at any depth."""
    if isinstance(plan, dict):
        yield plan
    for part in plan.values() if isinstance(plan, dict) else plan:
        if isinstance(part, dict | list):
            yield from nodes(part)


def test_passes_and_maintenance_read_only_due_rows(request, kind):
    clock = FrozenClock(START)
    with application(request.getfixturevalue(f"{kind}_url"), clock=clock) as dynbeat:
        dynbeat.context.prepare()
        fill(dynbeat, kind)
        names = ", ".join(f"'n{2 * number}'" for number in range(1, DUE + 1))
        execute(dynbeat, MAKE_DUE.format(names=names, **instants(kind)))
        beat = ManualBeat(dynbeat)
        with executed(dynbeat) as statements:
            beat.run_until_idle()
            # Maintenance, and a sweep of the runs that were sent and not started.
            clock.advance(timedelta(hours=2))
            beat.run_until_idle()
        selects = [each for each in statements if each[0].startswith("SELECT")]
        read = {sql: rows_read(dynbeat, kind, sql, values) for sql, values in selects}

        assert len(beat.publisher.sent) == 2 * DUE
        assert len(read) > 8
        assert {sql: count for sql, count in read.items() if count > FEW} == {}
        # The check itself: it detects a query without an index.
        unserved = "SELECT id FROM dynbeat_schedule WHERE task = 'x'"
        assert rows_read(dynbeat, kind, unserved, ()) >= ROWS


@pytest.mark.parametrize("far", [0.01, 0.5, 0.99])
@pytest.mark.parametrize("owner", ["'crowd'", "CONCAT('user:', n % 1000)"])
def test_a_page_reads_only_its_rows_at_any_position(request, kind, owner, far):
    with application(request.getfixturevalue(f"{kind}_url")) as dynbeat:
        dynbeat.context.prepare()
        fill(dynbeat, kind, owner=owner)
        cursor, last = behind(dynbeat, int(ROWS * far))
        whose = last if last == "crowd" else None
        with executed(dynbeat) as statements:
            page = dynbeat.schedules.list(owner=whose, limit=DUE, after=cursor)
        [select] = [each for each in statements if "dynbeat_schedule" in each[0]]

        assert len(page) == DUE
        assert rows_read(dynbeat, kind, *select) < FEW


def behind(dynbeat, position):
    ordered = "SELECT owner, name FROM dynbeat_schedule ORDER BY owner, name LIMIT 1 OFFSET"
    with dynbeat.context.database.engine.connect() as connection:
        owner, name = connection.execute(text(f"{ordered} {position}")).one()
    return cursor_after(owner, name), owner


def test_a_confirm_with_a_plan_for_an_empty_history_reads_no_history_later(postgresql_url):
    unended = {"status": "sent", "finished_at": "NULL"}
    sequence = numbers("postgresql", rows=ROWS)
    given = {"sequence": sequence, **instants("postgresql"), **unended}
    with application(postgresql_url) as dynbeat:
        dynbeat.context.prepare()
        with dynbeat.context.database.engine.connect() as connection:
            session = Session(connection)
            # The driver prepares the statement at its sixth execution. After five more the server
            # may keep a generic plan.
            for _ in range(20):
                confirm(session)
            assert kept_plans(session) == 1
            of_none = HISTORY.format(id=IDS["postgresql"], schedule="NULL", **given)
            session.execute(text(of_none))
            confirm(session)
            read = read_in_sequence(session, "dynbeat_run")
            # The check itself: it detects a sequential scan.
            session.execute(text("SELECT count(*) FROM dynbeat_run WHERE task = 'x'"))
            at_last = read_in_sequence(session, "dynbeat_run")
            session.close()

        assert (read, at_last) == (0, ROWS)


def confirm(session):
    batch = [new_run_id(START) for _ in range(DUE)]
    runs.mark_sent(session, batch, attempt=0, queues={}, now=START, overdue_at=START + DAY)


def kept_plans(session):
    """Return how many prepared UPDATEs of runs were executed with a generic plan."""
    kept = (
        "SELECT count(*) FROM pg_prepared_statements"
        " WHERE statement LIKE '%UPDATE dynbeat_run%' AND generic_plans > 0"
    )
    return session.scalar(text(kept))


def read_in_sequence(session, table):
    """Return how many rows this transaction has read in sequential scans of the table."""
    scans = "SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = :table"
    return session.scalar(text(scans), {"table": table})


def test_a_worker_reads_only_its_own_runs(request, kind):
    with application(request.getfixturevalue(f"{kind}_url")) as dynbeat:
        dynbeat.context.prepare()
        fill(dynbeat, kind)
        # Unfinished runs of another worker, and unstarted runs.
        execute(dynbeat, "UPDATE dynbeat_run SET finished_at = NULL, status = 'sent'")
        others = "UPDATE dynbeat_run SET status = 'running', worker = '{}' WHERE name IN ({})"
        for worker, first in (("mine", 1), ("another", DUE + 1)):
            names = ", ".join(f"'n{number}'" for number in range(first, first + DUE))
            execute(dynbeat, others.format(worker, names))
        with executed(dynbeat) as statements:
            found = dynbeat.context.database.read(
                lambda session: unfinished.running_on_worker(session, worker="mine", limit=ROWS)
            )
        selects = [each for each in statements if each[0].startswith("SELECT")]

        assert len(found) == DUE
        [read] = [rows_read(dynbeat, kind, *each) for each in selects]
        # MySQL counts the search for the first row.
        assert DUE <= read <= DUE + 1


@pytest.mark.parametrize(
    ("failed", "limit"), [(0, FIRST_ROWS), (FIRST_ROWS - 1, FIRST_ROWS), (ROWS, MAX_ROWS)]
)
def test_the_search_for_a_success_reads_the_newest_runs(request, kind, failed, limit):
    url = request.getfixturevalue(f"{kind}_url")
    with application(url) as dynbeat, record_statements(dynbeat.context.database.engine) as read:
        run_id = add_history(dynbeat, kind, failed=failed)
        read.clear()
        found = dynbeat.context.database.read_in_transaction(
            lambda session: runs.last_success(session, run_id=run_id, before=START)
        )

    assert found == (None if failed == ROWS else START - timedelta(seconds=failed + 1))
    # MariaDB writes the rows to a temporary table and reads them there again.
    assert 0 < sum(each.rows for each in read) <= 2 * limit + 3 * FIRST_ROWS


def add_history(dynbeat, kind, *, failed):
    """Give a schedule one run at START, and before it failed ones and then succeeded ones."""
    dynbeat.context.prepare()
    mine = dynbeat.schedules.for_owner("user:42")
    mine.create("n", task="t", trigger=MINUTELY)
    run_id = mine.run_now("n").id
    second = "n * INTERVAL '1 second'" if kind == "postgresql" else "INTERVAL n SECOND"
    now = instants(kind)["now"]
    statement = f"""
        INSERT INTO dynbeat_run
            (id, schedule_id, owner, name, task, fire_at, status, finished_at)
        SELECT {IDS[kind]}, (SELECT id FROM dynbeat_schedule), 'user:42', 'n', 't',
            {now} - {second}, CASE WHEN n <= {failed} THEN 'failed' ELSE 'succeeded' END, {now}
        FROM {numbers(kind, rows=ROWS)}
    """
    execute(dynbeat, statement)
    return run_id
