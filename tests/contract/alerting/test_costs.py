"""Any number of beats, thousands of failing schedules, and alerts that are off."""

import subprocess
import sys
import threading
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import event, insert, select, text

from celery_dynbeat.alerts.checks import add_missing_checks
from celery_dynbeat.alerts.opening import BATCH
from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.alert_models import AlertCheck, AlertFact
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.store.schedules import due
from tests.contract.alerting.conftest import evaluation
from tests.support.applications import MINUTELY

MINUTE = timedelta(minutes=1)


def add_failures(dynbeat, *, schedules, facts=1):
    """Insert schedules and facts of their failures, as workers would."""
    rows = [
        {"owner": f"user:{each % 7}", "name": f"n{each}", "task": "t", "trigger": MINUTELY}
        for each in range(schedules)
    ]
    dynbeat.schedules.create_many(rows)
    at = dynbeat.context.clock.now()

    def work(session):
        for number in range(facts):
            source = select(
                text("'failed'"), Schedule.id, text(f"'{at + number * MINUTE:%Y-%m-%d %H:%M:%S}'")
            ).order_by(Schedule.id)
            session.execute(insert(AlertFact).from_select(["kind", "schedule_id", "at"], source))
        session.execute(text("UPDATE dynbeat_schedule SET failing_since = created_at"))

    dynbeat.context.database.run(work)


@pytest.fixture
def statements():
    """Return a function that records the statements of an application from now on."""

    def record(dynbeat: Any) -> list[str]:
        found: list[str] = []
        engine = dynbeat.context.database.engine

        def note(_connection, _cursor, statement, _values, _context, _many):
            found.append(statement)

        event.listen(engine, "before_cursor_execute", note)
        return found

    return record


@pytest.mark.parametrize("schedules", [5_000])
def test_thousands_of_failing_schedules_cost_some_statements_each_batch(
    alerting, statements, schedules
):
    made = alerting(alert_after_failures=1)
    add_failures(made.dynbeat, schedules=schedules)
    executed = statements(made.dynbeat)
    for _ in range(20):
        made.alerts.run()
        if not made.facts():
            break

    rows = made.stored()
    assert len(rows) == schedules
    assert {row.fact_count for row in rows} == {1}
    batches = schedules / BATCH
    # Without those of the test, and with BEGIN and SET of each transaction.
    assert len(executed) < 15 * (batches + 4)


def test_two_beats_open_each_alert_once(alerting, reported):
    made = alerting()
    # Facts of one schedule are in the batches of both beats.
    add_failures(made.dynbeat, schedules=400, facts=3)
    passes = [evaluation(made.dynbeat) for _ in range(2)]
    errors = []
    start = threading.Barrier(2)

    def work(alert_pass):
        try:
            start.wait(10)
            alert_pass.run()
        except Exception as error:  # noqa: BLE001 - the assertion shows it
            errors.append(error)

    threads = [threading.Thread(target=work, args=(each,)) for each in passes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made.alerts.run()

    assert errors == []
    assert [name for name, _ in reported] == ["alert_opened"] * 400
    rows = made.stored()
    assert len(rows) == 400
    assert made.facts() == []
    assert {row.recovered_at for row in rows} == {None}


def test_a_beat_that_is_second_to_open_an_alert_counts_its_fact(alerting, reported, database_url):
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer at a time")
    made = alerting()
    add_failures(made.dynbeat, schedules=1)
    others = []

    def open_first(_connection, _cursor, statement, *_):
        # This beat has found no alert, and is about to insert it.
        if statement.startswith("INSERT INTO dynbeat_alert (") and not others:
            others.append(evaluation(made.dynbeat))
            made.dynbeat.context.database.run(add_second_fact)
            others[0].run()

    event.listen(made.dynbeat.context.database.engine, "before_cursor_execute", open_first)
    made.alerts.run()

    (row,) = made.stored()
    assert (len(others), row.fact_count, made.facts()) == (1, 2, [])
    assert [name for name, _ in reported] == ["alert_opened"]


def add_second_fact(session):
    schedule = session.scalars(select(Schedule)).one()
    at = schedule.created_at + MINUTE
    session.add(AlertFact(kind="failed", schedule_id=schedule.id, at=at, run_id=new_run_id(at)))


def test_the_evaluation_locks_no_schedule_that_a_claim_needs(alerting, clock, database_url):
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite has no row locks")
    made = alerting()
    add_failures(made.dynbeat, schedules=20)
    clock.advance(MINUTE)
    claimed = []

    def claim(point):
        if point == "deleted":
            lock = made.dynbeat.context.database.run(
                lambda session: due.lock_due(session, now=clock.now(), limit=100)
            )
            claimed.append(len(lock))

    evaluation(made.dynbeat, claim).run()

    assert claimed[0] == 20


def test_an_edit_that_is_not_committed_does_not_block_the_evaluation(alerting, database_url):
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer at a time")
    made = alerting()
    add_failures(made.dynbeat, schedules=3)
    engine = made.dynbeat.context.database.engine
    with engine.connect() as connection:
        connection.execute(select(Schedule.id).with_for_update())
        made.alerts.run()
        connection.rollback()

    assert made.open() == ["failed"] * 3


def test_the_search_for_older_schedules_does_not_hide_them_from_beat(alerting, clock, database_url):
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite has no row locks")
    made = alerting()
    for number in range(5):
        made.mine.create(f"n{number}", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)

    def search_and_claim(session):
        add_missing_checks(session, after=0, now=clock.now())
        lock = partial(due.lock_due, now=clock.now(), limit=100)
        return len(made.dynbeat.context.database.run(lock))

    assert made.dynbeat.context.database.run(search_and_claim) == 5


def test_an_edit_that_is_not_committed_does_not_block_the_search_for_older_schedules(
    alerting, database_url
):
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer at a time")
    made = alerting()
    schedule = made.mine.create("n", task="t", trigger=MINUTELY)
    alerts = evaluation(made.dynbeat, alert_silent_after=timedelta(minutes=10))
    with made.dynbeat.context.database.engine.connect() as connection:
        connection.execute(select(Schedule.id).with_for_update())
        alerts.run()
        watched = connection.scalars(select(AlertCheck.schedule_id)).all()
        connection.rollback()

    assert watched == [schedule.id]


def test_without_alerts_no_statement_names_their_tables(alerting, statements, clock):
    made = alerting(alerts=False)
    made.mine.create("n", task="t", trigger=MINUTELY, pause_after_failures=1)
    made.mine.create("bad", task="t", trigger=MINUTELY)
    made.dynbeat.context.database.run(
        lambda session: session.execute(
            text("UPDATE dynbeat_schedule SET trigger_spec = 'x' WHERE name = 'bad'")
        )
    )
    executed = statements(made.dynbeat)
    clock.advance(2 * MINUTE)
    made.worker.heartbeat()
    made.beat.run_until_idle()
    for run in made.beat.publisher.sent:
        made.worker.start(run)
        made.worker.finish(run, Status.FAILED)

    assert executed
    assert [each for each in executed if "dynbeat_alert" in each] == []


def test_without_alerts_beat_loads_no_module_and_starts_no_thread(tmp_path):
    program = f"""
import sys, threading
from datetime import timedelta
from celery import Celery
from celery_dynbeat import Dynbeat
from celery_dynbeat.beat.runtime import BeatRuntime
app = Celery("off", broker="memory://", set_as_current=False)
app.conf.update(
    dynbeat_database_url="sqlite:///{tmp_path}/off.sqlite3", dynbeat_notifier="polling"
)
beat = BeatRuntime(
    Dynbeat(app).context, wake=lambda: None, failpoint=lambda point: None,
    poll_interval=timedelta(seconds=1),
)
beat.run_pass()
# The API imports the queries on checks: create() writes to them.
used = ("celery_dynbeat.store.alerts", "celery_dynbeat.store.alerts.checks")
loaded = [
    name for name in sys.modules
    if (".alerts" in name or ".beat.alert" in name) and name not in used
    and name != "celery_dynbeat.api.control.alerts"
]
assert loaded == [], loaded
assert not [each for each in threading.enumerate() if "alert" in each.name]
beat.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
