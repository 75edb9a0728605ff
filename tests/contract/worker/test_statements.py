"""How many statements and commits a run costs its worker: one each for the start and the end."""

from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace

import pytest
from celery.app.trace import build_tracer
from sqlalchemy import event

from celery_dynbeat.broker.headers import run_headers
from celery_dynbeat.testing import ManualBeat
from celery_dynbeat.transitions import alert_facts
from celery_dynbeat.worker.signal_handlers import OutcomeSignals
from celery_dynbeat.worker.task_guard import TaskGuard
from tests.support.applications import MINUTELY
from tests.support.worker_stub import WorkerStub

MINUTE = timedelta(minutes=1)
#: SQLite begins a write transaction with an UPDATE of no row.
BEGIN_WRITE = "WHERE 0 = 1"


def is_autocommit(connection):
    return connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT"


@contextmanager
def counting(engine):
    """Yield what a block executes. In autocommit mode each statement is a commit."""
    counted = SimpleNamespace(statements=[], commits=0)

    def on_statement(connection, _cursor, sql, _values, _context, _many):
        if BEGIN_WRITE not in sql:
            counted.statements.append(sql)
            counted.commits += is_autocommit(connection)

    def on_commit(connection):
        counted.commits += not is_autocommit(connection)

    event.listen(engine, "before_cursor_execute", on_statement)
    event.listen(engine, "commit", on_commit)
    yield counted
    event.remove(engine, "before_cursor_execute", on_statement)
    event.remove(engine, "commit", on_commit)


class Worker:
    """A worker that executes the last message of a schedule in this process."""

    def __init__(self, dynbeat, clock):
        self.context, self.clock = dynbeat.context, clock
        self.mine = dynbeat.schedules.for_owner("user:42")
        self.beat, self.node = ManualBeat(dynbeat), WorkerStub(dynbeat)
        self.outcomes = OutcomeSignals(self.context, self.node.name)
        self.ends = []

        @dynbeat.app.task(name="t", bind=True, shared=False, ignore_result=True)
        def task(bound):
            end = self.ends.pop()
            if end is not None:
                raise bound.retry(countdown=0) if end == "retry" else end

        TaskGuard(self.context, self.node.name, self.outcomes).wrap(task)
        self.trace = build_tracer("t", task, app=dynbeat.app)

    def create(self, **options):
        self.mine.create("n", task="t", trigger=MINUTELY, **options)

    def execute(self, end=None):
        """Execute the next run, and return what that cost. ``end`` is an exception of its body."""
        self.clock.advance(MINUTE)
        self.node.heartbeat()
        self.beat.run_until_idle()
        run, self.ends = self.beat.publisher.sent[-1], [end]
        headers = run_headers(run, sent_at=self.clock.now())
        request = {
            **headers,
            "headers": headers,
            "id": run.run_id,
            "retries": 0,
            "delivery_info": {"exchange": "", "routing_key": "celery"},
        }
        with counting(self.context.database.engine) as counted:
            self.trace(run.run_id, [], {}, request)
        assert self.ends == []
        return counted


@pytest.fixture
def worker(limited, clock):
    """Return a function that makes the worker of an application with these settings."""
    workers = []

    def make(**settings):
        made = Worker(limited(**settings), clock)
        made.outcomes.connect()
        workers.append(made)
        return made

    yield make
    for made in workers:
        made.outcomes.disconnect()
        made.outcomes.close()


@pytest.fixture(autouse=True)
def _no_run_is_slow(monkeypatch):
    # A body that takes a second on a busy machine is a fact for alerts.
    monkeypatch.setattr(alert_facts, "MIN_SLOW", timedelta(hours=1))


def tables(counted):
    return [sql.split()[:2] for sql in counted.statements]


TWO_UPDATES = [["UPDATE", "dynbeat_run"]] * 2


@pytest.mark.parametrize("settings", [{}, {"alerts": True}], ids=["plain", "alerts"])
def test_a_run_that_succeeds_costs_two_statements_and_two_commits(worker, settings):
    made = worker(**settings)
    made.create(pause_after_failures=3)
    # The first run connects, and reads what the server supports.
    made.execute()

    counted = made.execute()

    assert tables(counted) == TWO_UPDATES
    assert counted.commits == 2


def test_so_does_the_first_run_that_succeeds_after_failures(worker):
    made = worker()
    made.create()
    made.execute(ValueError())

    counted = made.execute()

    assert (tables(counted), counted.commits) == (TWO_UPDATES, 2)
    made.beat.run_until_idle()
    assert made.mine.get("n").failing_since is None


def test_a_retry_costs_two_statements_and_two_commits(worker):
    made = worker()
    made.create()
    made.execute()

    counted = made.execute("retry")

    assert (tables(counted), counted.commits) == (TWO_UPDATES, 2)


def test_a_failed_run_of_a_failing_schedule_costs_one_read_more(worker):
    made = worker()
    made.create()
    made.execute(ValueError())

    counted = made.execute(ValueError())

    assert tables(counted)[:2] == TWO_UPDATES
    assert [sql.split()[0] for sql in counted.statements[2:]] == ["SELECT"]


def test_alerts_add_one_insert_in_the_transaction_of_a_failure(worker):
    made = worker(alerts=True)
    made.create()
    made.execute(ValueError())

    counted = made.execute(ValueError())

    of = [sql.split()[0] for sql in counted.statements]
    assert [each for each in of if each not in {"SAVEPOINT", "RELEASE"}] == [
        *("UPDATE", "UPDATE", "INSERT", "SELECT"),
    ]


def test_an_overlap_policy_adds_the_read_of_the_waiting_run(worker):
    made = worker()
    made.create(overlap="buffer_one")
    made.execute()

    counted = made.execute()

    assert tables(counted)[:2] == TWO_UPDATES
    assert [sql.split()[0] for sql in counted.statements[2:]] == ["SELECT"]
    assert counted.commits == 2
