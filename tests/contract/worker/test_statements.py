"""How many statements and commits a run costs its worker: one each for the start and the end.

A worker with a backlog writes the end with the start of its next run.
"""

import pytest

from celery_dynbeat.worker import outcome_recorder
from tests.support.executing_worker import ExecutingWorker, counting


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


@pytest.fixture(autouse=True)
def _any_speed_of_the_machine(monkeypatch):
    # On a fast machine, two runs one after the other are a backlog.
    monkeypatch.setattr(outcome_recorder, "OUTCOME_DELAY", 0)


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


def test_a_run_of_a_backlog_costs_one_commit(worker, monkeypatch):
    # However slow this machine is.
    monkeypatch.setattr(outcome_recorder, "OUTCOME_DELAY", 60)
    made = worker()
    made.create()
    runs = [made.send() for _ in range(12)]
    # The second finds that the backlog exists.
    made.consume(runs[0])
    made.consume(runs[1])

    with counting(made.context.database.engine) as counted:
        for run in runs[2:]:
            made.consume(run)

    in_one = made.context.database.has_writing_cte
    assert (len(counted.statements), counted.commits) == (10 if in_one else 20, 10)
    made.outcomes.close()
    assert {made.status(run) for run in runs} == {"succeeded"}


def test_the_first_success_after_failures_costs_two_commits(worker):
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


@pytest.mark.parametrize("settings", [{}, {"alerts": True}], ids=["plain", "alerts"])
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
