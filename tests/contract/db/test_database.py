"""The database: instants, repeated transactions, forks, passwords, and outages."""

import json
import os
import re
import sqlite3
import threading
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import bindparam, event, select, text, update
from sqlalchemy.exc import DBAPIError, StatementError

from celery_dynbeat import ConfigurationError, Every
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import Status
from celery_dynbeat.db import connections, schema
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.worker import outcome_recorder
from celery_dynbeat.worker.outcome_recorder import Recorder
from celery_dynbeat.worker.outcomes import Outcome
from tests.support.applications import MINUTELY, START, application, execute
from tests.support.combinations import DATABASES
from tests.support.servers import PostgreSQLServer, mariadb_or_mysql
from tests.support.suites import each_database
from tests.support.waiting import wait_until

END_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


def recorder_on(database):
    return Recorder(database, settings=Settings(), notify=lambda _session: None)


@each_database
def test_an_instant_is_stored_with_microseconds_and_returned_in_utc(mine):
    given = datetime(2027, 3, 4, 5, 6, 7, 123457, timezone(timedelta(hours=9)))

    mine.create("n", task="t", trigger=MINUTELY, start_at=given)

    assert mine.get("n").start_at == given
    assert mine.get("n").start_at.tzinfo is UTC
    assert mine.get("n").next_run_at == given


@each_database
def test_a_naive_instant_is_rejected(dynbeat):
    naive = datetime(2026, 1, 1)  # noqa: DTZ001 - naive on purpose
    query = select(Schedule.id).where(Schedule.next_run_at == naive)

    with pytest.raises(StatementError, match="naive datetime"):
        dynbeat.context.database.read(lambda session: session.execute(query))


@each_database
def test_the_clock_of_the_database_is_aware(dynbeat):
    assert abs(dynbeat.context.database.read_clock() - datetime.now(UTC)) < timedelta(seconds=60)


@each_database
def test_arguments_keep_each_digit_and_the_order_of_their_keys(mine):
    kwargs = {"b": 2**64, "a": [-(2**63) - 1, 10**30, 1e22, 1.0, 0.1], "aa": {"z": 1, "": None}}
    mine.create("n", task="t", trigger=MINUTELY, kwargs=kwargs)

    assert json.dumps(mine.get("n").kwargs) == json.dumps(kwargs)


@each_database
def test_the_database_refuses_arguments_that_are_no_json(dynbeat, mine):
    mine.create("n", task="t", trigger=MINUTELY)

    with pytest.raises(DBAPIError):
        execute(dynbeat, "UPDATE dynbeat_schedule SET kwargs = '{oops'")

    assert mine.get("n").kwargs == {}


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_transaction_is_repeated_after_a_deadlock(request, kind):
    with application(request.getfixturevalue(f"{kind}_url")) as dynbeat:
        mine = dynbeat.schedules.for_owner("o")
        for name in "ab":
            mine.create(name, task="t", trigger=MINUTELY)
        crossing, attempts = threading.Barrier(2), []

        def swap(first, second):
            def work(session):
                attempts.append(first)
                change = text("UPDATE dynbeat_schedule SET task = :task WHERE name = :name")
                session.execute(change, {"task": f"{first}{second}", "name": first})
                # Only the first two attempts lock one row each and then wait for the other.
                if len(attempts) <= 2:
                    crossing.wait(10)
                session.execute(change, {"task": f"{first}{second}", "name": second})

            dynbeat.context.database.run(work)

        threads = [threading.Thread(target=swap, args=names) for names in ("ab", "ba")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)

        assert len(attempts) == 3
        assert mine.get("a").task == mine.get("b").task


@each_database
def test_a_forked_child_and_its_parent_use_separate_connections(mine):
    mine.create("n", task="t", trigger=MINUTELY)

    child = os.fork()
    if child == 0:
        status = 1
        try:
            mine.update("n", trigger=Every(7))
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert mine.get("n").trigger == Every(7)


def test_a_password_is_in_no_shown_url_and_in_no_error():
    assert "secret" not in Database("postgresql+psycopg://u:secret@host/db").shown_url

    for url in ("nonsense:secret", "odd+odd://u:secret@host/db", "oracle://u:secret@host/db"):
        with pytest.raises(ConfigurationError) as caught:
            _ = Database(url).engine
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("mysql://u:s3cret@h/d", "write mysql+pymysql://... and install celery-dynbeat[mysql]"),
        ("mariadb+asyncmy://h/d", "write mariadb+pymysql://... and install celery-dynbeat[mysql]"),
        ("postgresql+pg8000://h/d", "write postgresql+psycopg://... and install"),
        ("oracle://u:s3cret@h/d", "database 'oracle' is not supported; use one of: mariadb"),
    ],
)
def test_the_error_of_an_unusable_url_names_the_fix(url, expected):
    with pytest.raises(ConfigurationError, match=re.escape(expected)) as caught:
        _ = Database(url).engine

    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("prepare", [schema.upgrade, schema.check])
@pytest.mark.parametrize("url", ["sqlite:////no/such/folder/d.db", "sqlite:///no-such-folder/d.db"])
def test_tables_in_a_folder_that_does_not_exist_name_the_fix(url, prepare):
    database = Database(url)

    with pytest.raises(ConfigurationError, match="folder' of dynbeat_database_url does not exist"):
        prepare(database)


@pytest.fixture
def pool_process(dynbeat):
    """Return a database whose connection is kept, and the checkouts of its pool."""
    database, checkouts = dynbeat.context.database, []
    event.listen(database.engine, "checkout", lambda *_: checkouts.append(1))
    touch_nothing(database)
    database.keep_connection()
    checkouts.clear()
    return database, checkouts


def touch_nothing(database):
    nothing = update(Schedule).where(Schedule.id < 0).values(name=bindparam("name_"))
    return database.execute(nothing, {"name_": "n"})


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_pool_process_keeps_the_connection_of_its_statements(pool_process):
    database, checkouts = pool_process

    for _ in range(3):
        assert touch_nothing(database) == 0

    assert len(checkouts) == 1


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_kept_connection_that_was_idle_is_pinged(dynbeat, pool_process, monkeypatch):
    database, checkouts = pool_process
    touch_nothing(database)
    monkeypatch.setattr(connections, "PING_AFTER_SECONDS", 0)
    execute(dynbeat, END_OTHERS)

    # The ping finds that the server has ended it.
    assert touch_nothing(database) == 0
    assert len(checkouts) > 1


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_kept_connection_that_is_lost_is_replaced_after_one_error(dynbeat, pool_process):
    database, _ = pool_process
    touch_nothing(database)
    execute(dynbeat, END_OTHERS)

    with pytest.raises(DBAPIError):
        touch_nothing(database)

    assert touch_nothing(database) == 0


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_child_of_a_pool_process_does_not_use_its_kept_connection(pool_process):
    database, _ = pool_process
    touch_nothing(database)

    child = os.fork()
    if not child:
        os._exit(touch_nothing(database))

    assert os.waitpid(child, 0)[1] == 0
    assert touch_nothing(database) == 0


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_pool_process_needs_one_connection(pool_process):
    database, _ = pool_process
    touch_nothing(database)

    with database.engine.connect():
        # This one is of the application. The clock uses the kept one.
        database.read_clock()
        assert database.engine.pool.checkedout() == 1
    assert database.read(lambda session: session.scalar(text("SELECT 1"))) == 1
    assert database.engine.pool.checkedin() == 2


@pytest.mark.parametrize("options", [{"pool_recycle": 60}, {"pool_size": 1}])
def test_a_connection_that_the_pool_checks_or_needs_is_not_kept(postgresql_url, options):
    database = Database(postgresql_url, engine_options=options)
    checkins = []
    event.listen(database.engine, "checkin", lambda *_: checkins.append(1))
    database.keep_connection()

    touch_nothing(database)
    touch_nothing(database)

    assert len(checkins) > 1
    database.dispose()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_dispose_closes_a_kept_connection(pool_process):
    database, _ = pool_process
    touch_nothing(database)

    database.dispose()

    assert database.engine.pool.checkedout() == 0
    assert touch_nothing(database) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", [PostgreSQLServer, mariadb_or_mysql()], ids=DATABASES)
def test_an_outcome_is_buffered_while_the_database_is_down_and_written_later(
    own_server, monkeypatch, kind
):
    monkeypatch.setattr(outcome_recorder, "FIRST_DELAY", 0.05)
    # With a server that starts slowly, the back-off could grow beyond the timeout of the test.
    monkeypatch.setattr(outcome_recorder, "MAX_DELAY", 1.0)
    server = own_server(kind)
    with application(server.url) as dynbeat:
        mine = dynbeat.schedules.for_owner("o")
        mine.create("n", task="t", trigger=MINUTELY)
        run = mine.run_now("n")
        execute(
            dynbeat,
            "UPDATE dynbeat_run SET status = 'running', attempt = 1, overdue_at = NULL",
        )
        ended = Outcome(run_id=run.id, attempt=1, worker="w", status=Status.SUCCEEDED, at=START)
        recorder = recorder_on(dynbeat.context.database)

        server.kill()
        recorder.record(ended)
        assert len(recorder._buffered) == 1
        server.start()

        wait_until(lambda: not recorder._buffered, within=30)
        assert [run.status for run in mine.runs()] == ["succeeded"]
        recorder.close()


def test_the_buffer_of_outcomes_is_bounded_and_drops_the_oldest(monkeypatch, caplog):
    monkeypatch.setattr(outcome_recorder, "MAX_BUFFERED_OUTCOMES", 2)
    # The folder does not exist, so SQLite fails like an unreachable server.
    recorder = recorder_on(Database("sqlite:////nowhere/at/all.sqlite3"))

    for number in range(4):
        recorder.record(
            Outcome(run_id=str(number), attempt=1, worker="w", status=Status.SUCCEEDED, at=START)
        )

    assert [outcome.run_id for outcome in recorder._buffered.values()] == ["2", "3"]
    recorder.close()
    dropped = [record for record in caplog.records if record.event == "outcome_dropped"]
    assert len(dropped) == 3


@each_database
def test_a_permanent_error_is_raised_without_a_repeat(dynbeat):
    attempts = []

    def work(session):
        attempts.append(1)
        session.execute(text("SELECT * FROM no_such_table"))

    with pytest.raises(DBAPIError, match="no_such_table"):
        dynbeat.context.database.run(work)

    assert attempts == [1]


def test_the_first_connection_waits_for_another_process_that_writes_the_file(tmp_path):
    database, failures = Database(f"sqlite:///{tmp_path}/new.sqlite3"), []
    # The file is not in WAL mode yet, because the package has not opened it.
    writer = sqlite3.connect(tmp_path / "new.sqlite3", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("CREATE TABLE theirs (id INTEGER)")

    def open_it():
        try:
            database.read(lambda session: session.execute(text("SELECT 1")).all())
        except Exception as error:  # noqa: BLE001 - shown by the assertion
            failures.append(error)

    opening = threading.Thread(target=open_it)
    opening.start()
    opening.join(0.5)
    waited = opening.is_alive()
    writer.execute("COMMIT")
    writer.close()
    opening.join(30)
    database.dispose()

    assert failures == []
    assert waited
