"""Queries read only the rows that they need, independent of the database's statistics.

The tests run without statistics, and with those of a table that was empty, of a table in which
everything was due, and of a table in which nothing was due.
"""

from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from celery_dynbeat import NotFoundError
from celery_dynbeat.beat import refused
from celery_dynbeat.beat.pruning import BATCH_SIZE
from celery_dynbeat.common.states import Status
from celery_dynbeat.common.text import EARLIEST
from celery_dynbeat.store import alerts, health, scans
from celery_dynbeat.store.health import MAX_COUNTED, MAX_RUNS_READ
from celery_dynbeat.store.runs import unfinished
from celery_dynbeat.store.schedules import due, failing
from celery_dynbeat.testing import FrozenClock, ManualBeat
from tests.support.applications import MINUTELY, START, application, execute
from tests.support.executed_statements import record_statements
from tests.support.number_rows import numbers
from tests.support.worker_stub import WorkerStub

ROWS, DUE = 10_000, 20
#: A statement may read some rows for each row that it needs, but never the whole table.
FEW = 10 * DUE
DAY = timedelta(days=1)
TABLES = ("dynbeat_schedule", "dynbeat_run", "dynbeat_node")
SCHEDULES = """
    INSERT INTO dynbeat_schedule (owner, name, task, trigger_kind, trigger_spec, next_fire_at,
        next_run_at, finished_at, enabled, overlap, created_at)
    SELECT owner, CONCAT('n', n), 't', 'every', 'PT1H', at, at, ended, enabled,
        CASE WHEN n % 3 = 0 THEN 'skip' END, {created}
    FROM (SELECT n, {owner} AS owner, {at} AS at, {ended} AS ended, {enabled} AS enabled
        FROM {sequence}) AS t
"""
# A quarter of the runs belong to one schedule, and a quarter to deleted schedules.
RUNS = """
    INSERT INTO dynbeat_run (id, schedule_id, owner, name, task, fire_at, status, origin,
        finished_at, overdue_at, started_at, retry_at, worker)
    SELECT {id}, CASE WHEN n % 4 = 0 THEN first WHEN n % 4 = 1 THEN NULL ELSE first + n - 1 END,
        {owner}, CONCAT('n', n), 't', {past}, {status}, 'schedule', {ended}, {overdue}, {started},
        {retry}, 'gone'
    FROM {sequence}, (SELECT MIN(id) AS first FROM dynbeat_schedule) AS f
"""
OWNER = "CASE WHEN n % 2 = 0 THEN 'crowd' ELSE CONCAT('user:', n % 997) END"
# Ids of a distant time, so that the pruner does not read these rows.
ID = "CONCAT('01990000-0000-7000-8000-', LPAD(CAST(n AS CHAR(12)), 12, '0'))"
#: Maintenance queries that read all unfinished runs (docs/explanation/measurements.md).
READ_ALL_UNFINISHED = (
    "LEFT OUTER JOIN dynbeat_node",
    "cancelled_at <=",
    "max(dynbeat_run.started_at)",
)


class Dialect:
    """The SQL that fills tables and computes statistics on one kind of database."""

    def __init__(self, kind):
        self.kind = kind
        self.null = "NULL::timestamptz" if kind == "postgresql" else "NULL"
        self.sequence = numbers(kind, rows=ROWS)
        self.id, self.analyze = f"CAST({ID} AS uuid)", "ANALYZE"
        self.still = "ALTER TABLE {} SET (autovacuum_enabled = off)"
        if kind == "mariadb":
            self.id, self.analyze = ID, "ANALYZE TABLE"
            self.still = "ALTER TABLE {} STATS_AUTO_RECALC = 0, STATS_PERSISTENT = 1"

    def at(self, seconds):
        if self.kind == "mariadb":
            return f"TIMESTAMP '2026-11-21 09:00:00' + INTERVAL ({seconds}) SECOND"
        return f"TIMESTAMPTZ '2026-11-21 09:00:00Z' + ({seconds}) * INTERVAL '1 second'"

    def schedules(self, **given):
        filled = {"at": self.null, "ended": self.null, "enabled": "TRUE"}
        filled |= {"created": self.at(-864_000), "owner": OWNER, "sequence": self.sequence}
        return SCHEDULES.format(**{**filled, **given})

    def runs(self, **given):
        filled = dict.fromkeys(("ended", "overdue", "started", "retry"), self.null)
        filled |= {"id": self.id, "owner": OWNER, "past": self.at("-n"), "sequence": self.sequence}
        return RUNS.format(**{**filled, **given})

    def when(self, condition, seconds):
        return f"CASE WHEN {condition} THEN {self.at(seconds)} END"

    def all_due(self):
        at = self.at("-1 - n % 1000 / 100.0")
        return self.schedules(at=at), self.runs(status="'sent'", overdue=at)

    def none_due(self):
        later, over = self.when("n % 2 = 0", "86400 + n"), self.when("n % 2 = 1", "-n")
        return (
            self.schedules(at=later, ended=over),
            self.runs(status="'succeeded'", ended=self.at("-n")),
        )

    def few_due(self):
        """Return the rows of an ordinary day: some due, overdue, lost, and waiting for a retry."""
        at = f"WHEN n % 4 >= 2 THEN {self.at('86400 + n')} END"
        first, second, third = (f"n > {k * DUE} AND n <= {(k + 1) * DUE}" for k in range(3))
        status = f"WHEN {second} THEN 'running' WHEN {third} THEN 'retrying' ELSE 'failed' END"
        return (
            self.schedules(
                at=f"CASE WHEN n <= {DUE} THEN {self.at('-n')} {at}",
                ended=self.when(f"n > {DUE} AND n % 4 = 1", "-n"),
                enabled=f"n <= {DUE} OR n % 4 > 0",
            ),
            self.runs(
                status=f"CASE WHEN {first} THEN 'sent' {status}",
                overdue=self.when(first, "-n"),
                started=self.when(second, -360_000),
                retry=self.when(third, -360_000),
                ended=self.when(f"n > {3 * DUE}", "-n"),
            ),
        )


@pytest.fixture(params=["postgresql", "mariadb"])
def dialect(request):
    return Dialect(request.param)


@pytest.fixture
def dynbeat(request, dialect, monkeypatch):
    monkeypatch.setattr(refused, "BATCH_SIZE", DUE)
    url = request.getfixturevalue(f"{dialect.kind}_url")
    settings = {"owner_limits": {"*": {"max_schedules": ROWS}}, "pause_after_failures": 3}
    with application(url, clock=FrozenClock(START), **settings) as made:
        made.context.prepare()
        for table in TABLES:
            execute(made, dialect.still.format(table))
        yield made


def take_statistics(dynbeat, dialect, of):
    """Compute statistics of other rows, and delete these rows."""
    if of == "nothing":
        return
    for statement in {"all due": dialect.all_due, "none due": dialect.none_due}.get(of, tuple)():
        execute(dynbeat, statement)
    for table in TABLES:
        execute(dynbeat, f"{dialect.analyze} {table}")
    for table in ("dynbeat_run", "dynbeat_schedule"):
        # PostgreSQL keeps the statistics of a truncated table.
        cascade = "CASCADE" if dialect.kind == "postgresql" else ""
        statement = f"TRUNCATE {table} {cascade}" if cascade else f"DELETE FROM {table}"
        execute(dynbeat, statement)


def excess(statements, *, exempt=()):
    """Return the statements that read more rows than they need, with their number."""
    return {
        " ".join(each.sql.split())[:500]: each.rows
        for each in statements
        if each.rows > allowed(each.sql) and not any(part in each.sql for part in exempt)
    }


def allowed(sql):
    if "dynbeat_run.id <" in sql:
        # The pruner: a batch of runs and their schedules.
        return 2 * BATCH_SIZE
    if "OFFSET" in sql or "LIMIT %(param_1)s, %(" in sql:
        # Where a page of schedules ends at the latest.
        return scans.MAX_SCANNED + FEW
    if sql.startswith("SELECT dynbeat_run.status, "):
        # Since when a schedule fails.
        return failing.MAX_READ + FEW
    if "anon_1.origin" in sql:
        # The consecutive failures. MariaDB copies the rows into a temporary table.
        return 2 * unfinished.UNTRIED_MARGIN + FEW
    # The search for unsupported triggers.
    return 2 * due.UNSUPPORTED_SEARCH_LIMIT + FEW if "anon_1.trigger_kind" in sql else FEW


@pytest.mark.parametrize("of", ["nothing", "an empty table", "all due", "none due"])
def test_each_query_reads_only_the_rows_it_needs_with_any_statistics(dynbeat, dialect, of):
    take_statistics(dynbeat, dialect, of)
    for statement in dialect.few_due():
        execute(dynbeat, statement)
    with record_statements(dynbeat.context.database.engine) as statements:
        passes_and_runs(dynbeat)
        calls_of_the_api(dynbeat)
        execute(dynbeat, "SELECT id FROM dynbeat_schedule WHERE task = 'x'")

    # The check itself: it detects a query without an index.
    assert statements.pop().rows >= ROWS
    assert len(statements) > 60
    assert excess(statements) == {}


@pytest.mark.parametrize("of", ["nothing", "an empty table", "none due"])
def test_a_backlog_is_read_batch_by_batch_with_any_statistics(dynbeat, dialect, of):
    take_statistics(dynbeat, dialect, of)
    for statement in dialect.all_due():
        execute(dynbeat, statement)
    beat = ManualBeat(dynbeat)
    with record_statements(dynbeat.context.database.engine) as statements:
        for _ in range(6):
            beat.tick()
        worker = WorkerStub(dynbeat)
        assert worker.start(beat.publisher.sent[0])
        assert len(held_by(dynbeat, worker)) == 1
        before = len(statements)
        dynbeat.context.database.read_in_transaction(
            lambda session: health.read(session, now=START, nodes_since=START - DAY)
        )

    assert len(beat.publisher.sent) > 6 * DUE
    assert excess(statements[:before], exempt=READ_ALL_UNFINISHED) == {}
    # The count of unfinished runs. MariaDB copies the rows into a temporary table.
    most = max(each.rows for each in statements[before:] if "GROUP BY" in each.sql)
    assert most <= 4 * MAX_RUNS_READ
    others = [each for each in statements[before:] if "GROUP BY" not in each.sql]
    assert max(each.rows for each in others) <= 2 * MAX_COUNTED


def passes_and_runs(dynbeat):
    clock, beat, worker = dynbeat.context.clock, ManualBeat(dynbeat), WorkerStub(dynbeat)
    beat.run_until_idle()
    for run in beat.publisher.sent[:DUE]:
        assert worker.start(run)
    assert len(held_by(dynbeat, worker)) == DUE
    for run in beat.publisher.sent[:DUE]:
        worker.finish(run, Status.FAILED)
    theirs = dynbeat.schedules.for_owner("user:1")
    span = {"since": START - 30 * timedelta(hours=1), "until": START + timedelta(seconds=1)}
    batch = theirs.backfill("n1", **span)
    clock.advance(timedelta(minutes=2))
    beat.run_until_idle()
    theirs.get_batch(batch.batch_id)
    theirs.cancel_runs(batch_id=batch.batch_id)
    assert len([run for run in beat.publisher.sent if run.name == "n1"]) > 10


def held_by(dynbeat, worker):
    """Run the queries of a worker's pool check, and return its running runs."""
    database = dynbeat.context.database
    rows = database.read(
        lambda session: unfinished.running_on_worker(session, worker=worker.name, limit=2 * DUE)
    )
    attempts = {row.id: row.attempt for row in rows}
    database.run(
        lambda session: unfinished.lock_attempts(session, worker="other", attempts=attempts)
    )
    return rows


def calls_of_the_api(dynbeat):
    every, crowd = dynbeat.schedules, dynbeat.schedules.for_owner("crowd")
    theirs = dynbeat.schedules.for_owner("user:1")
    for schedules in (every, crowd, theirs):
        page = schedules.list(limit=2)
        schedules.list(limit=DUE, after=page.cursor)
        schedules.list(limit=DUE, task="t")
    assert len(crowd.runs(limit=DUE)) == len(crowd.runs(limit=DUE, since=START - DAY)) == DUE
    assert crowd.runs("n6", limit=DUE)
    theirs.runs(limit=DUE)
    for schedules, name in ((crowd, "n6"), (theirs, "n1")):
        schedules.pause(name)
        schedules.resume(name)
        schedules.run_now(name)
    crowd.update("n6", description="x")
    crowd.delete("n10")
    dynbeat.schedules.for_owner("user:9").upsert("new", task="t", trigger=MINUTELY)
    new = {"task": "t", "trigger": MINUTELY}
    every.create_many({"owner": f"user:{n}", "name": "many", **new} for n in range(DUE))


def test_overlap_reads_the_newest_of_very_many_runs_and_all_of_the_others(dynbeat, dialect):
    for statement in dialect.all_due():
        execute(dynbeat, statement)
    with Session(dynbeat.context.database.engine) as session:
        first = session.scalar(text("SELECT MIN(id) FROM dynbeat_schedule"))
    ids = range(first, first + 4 * DUE)
    with (
        record_statements(dynbeat.context.database.engine) as statements,
        Session(dynbeat.context.database.engine) as session,
    ):
        found = unfinished.unfinished_runs(session, ids)

    newest = sorted(run.id for run in found if run.schedule_id == first)
    assert len(newest) == unfinished.MAX_UNFINISHED
    assert newest[-1].endswith(f"{ROWS:012}")
    # One run for each schedule that has runs in RUNS.
    others = [run.schedule_id - first for run in found if run.schedule_id != first]
    assert sorted(others) == [at for at in range(4 * DUE) if at % 4 in (1, 2)]
    # The runs of the first schedule are read again, because waiting ones could hide a running one.
    assert sum(each.rows for each in statements) <= ROWS


def test_consecutive_failures_are_searched_in_the_newest_part_of_a_history(dynbeat, dialect):
    for statement in dialect.all_due():
        execute(dynbeat, statement)
    first = "(SELECT MIN(id) FROM dynbeat_schedule)"
    execute(dynbeat, f"UPDATE dynbeat_run SET origin = 'manual' WHERE schedule_id = {first}")
    with (
        record_statements(dynbeat.context.database.engine) as statements,
        Session(dynbeat.context.database.engine) as session,
    ):
        schedule_id = session.scalar(text(f"SELECT {first}"))
        found = unfinished.latest_outcomes(session, schedule_id=schedule_id, until=START, limit=3)
        assert found == []

    # Twice the rows where MariaDB copies them into a temporary table.
    assert max(each.rows for each in statements) <= 2 * (unfinished.UNTRIED_MARGIN + FEW)


def test_failures_in_a_row_are_searched_in_the_newest_part_of_a_history(dynbeat, dialect):
    for statement in dialect.all_due():
        execute(dynbeat, statement)
    ended = "status = 'failed', finished_at = fire_at, overdue_at = NULL"
    execute(dynbeat, f"UPDATE dynbeat_run SET {ended} WHERE schedule_id IS NOT NULL")
    database = dynbeat.context.database
    first = database.read(
        lambda session: session.scalar(text("SELECT MIN(id) FROM dynbeat_schedule"))
    )
    with record_statements(database.engine) as executed:
        # Its failures began just now: all runs of the history ended before.
        schedule = SimpleNamespace(id=first, failing_since=START)
        find = partial(alerts.newest_failures, schedules=[schedule], number=2)
        assert database.read_in_transaction(find) == {}
        before = SimpleNamespace(id=first, failing_since=EARLIEST)
        find = partial(alerts.newest_failures, schedules=[before], number=2)
        assert list(database.read_in_transaction(find)) == [first]

    # Three times the rows where MariaDB copies them into temporary tables.
    assert max(each.rows for each in executed) <= 3 * (unfinished.UNTRIED_MARGIN + FEW)


def test_the_callers_own_queries_keep_their_plans(postgresql_url):
    with application(postgresql_url) as dynbeat:
        dynbeat.context.prepare()
        with Session(dynbeat.context.database.engine) as session:
            session.execute(text("SET LOCAL enable_sort = off"))
            dynbeat.schedules.for_owner("ann", session=session).list()
            with pytest.raises(NotFoundError):
                dynbeat.schedules.for_owner("ann", session=session).pause("none")

            settings = ("enable_seqscan", "enable_sort", "enable_hashjoin", "jit")
            found = [session.scalar(text(f"SHOW {name}")) for name in settings]
        assert found == ["on", "off", "on", "on"]
