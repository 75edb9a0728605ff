"""How many statements and commits a run costs its worker: one each for the start and the end.

A worker with a backlog ends many runs at once.
"""

import pytest

from celery_dynbeat.worker import outcome_recorder
from tests.support.executing_worker import ExecutingWorker, counting
from tests.support.suites import each_database
from tests.support.waiting import wait_until


@pytest.fixture
def worker(limited, clock):
    """Return a function that makes the worker of an application with these settings."""
    workers = []

    def make(**settings):
        made = ExecutingWorker(limited(**settings), clock)
        workers.append(made)
        return made

    yield make
    for made in workers:
        made.outcomes.disconnect()
        made.outcomes.close()


def tables(counted):
    return [sql.split()[:2] for sql in counted.statements]


TWO_UPDATES = [["UPDATE", "dynbeat_run"]] * 2


@pytest.mark.parametrize("settings", [{}, {"alert_urls": []}], ids=["plain", "alerts"])
@each_database
def test_a_run_that_succeeds_costs_two_statements_and_two_commits(worker, settings):
    made = worker(**settings)
    made.create(pause_after_failures=3)
    # The first run connects, and reads what the server supports.
    made.execute()

    counted = made.execute()

    assert tables(counted) == TWO_UPDATES
    assert counted.commits == 2


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_run_of_a_backlog_costs_less_than_1_2_commits(worker, monkeypatch):
    # However slow this machine is.
    monkeypatch.setattr(outcome_recorder, "BATCH_INTERVAL", 60)
    made = worker()
    made.create()
    made.task.acks_late = False
    made.outcomes.start()
    made.execute()
    wait_until(lambda: made.status(made.beat.publisher.sent[0]) == "succeeded", within=10)
    runs = [made.send() for _ in range(12)]

    with counting(made.context.database.engine) as counted:
        for run in runs:
            made.consume(run)
        made.outcomes.close()

    is_one_statement = made.context.database.capabilities.has_lateral
    statements = 12 + 1 if is_one_statement else 12 + 1 + 12
    assert (len(counted.statements), counted.commits) == (statements, 13)
    assert {made.status(run) for run in runs} == {"succeeded"}


def test_the_first_success_after_failures_costs_two_commits(worker):
    made = worker()
    made.create()
    made.execute(ValueError())

    counted = made.execute()

    assert (tables(counted), counted.commits) == (TWO_UPDATES, 2)
    made.beat.run_until_idle()
    assert made.mine.get("n").failing_since is None


@each_database
def test_a_retry_costs_two_statements_and_two_commits(worker):
    made = worker()
    made.create()
    made.execute()

    counted = made.execute("retry")

    assert (tables(counted), counted.commits) == (TWO_UPDATES, 2)


@pytest.mark.parametrize("settings", [{}, {"alert_urls": []}], ids=["plain", "alerts"])
def test_a_failed_run_of_a_failing_schedule_costs_one_read_more(worker, settings):
    made = worker(**settings)
    made.create()
    made.execute(ValueError())

    counted = made.execute(ValueError())

    assert tables(counted)[:2] == TWO_UPDATES
    assert [sql.split()[0] for sql in counted.statements[2:]] == ["SELECT"]


def test_an_overlap_policy_adds_the_read_of_the_waiting_run(worker):
    made = worker()
    made.create(overlap="buffer_one")
    made.execute()

    counted = made.execute()

    assert tables(counted)[:2] == TWO_UPDATES
    assert [sql.split()[0] for sql in counted.statements[2:]] == ["SELECT"]
    assert counted.commits == 2
