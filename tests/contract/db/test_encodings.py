"""With a database that cannot store every text, no outcome is lost and no name is changed."""

import logging
from datetime import timedelta

import pytest
from sqlalchemy import create_engine

from celery_dynbeat import InvalidArgumentError
from celery_dynbeat.beat import config_sync
from celery_dynbeat.common.states import Status
from celery_dynbeat.db import schema
from celery_dynbeat.db.engine import Database
from celery_dynbeat.store.schedules import due
from celery_dynbeat.testing import ManualBeat
from celery_dynbeat.worker.outcome_recorder import Recorder
from celery_dynbeat.worker.outcomes import Outcome
from tests.support.applications import MINUTELY, application
from tests.support.databases import new_postgresql_database
from tests.support.worker_stub import WorkerStub

KOREAN, BEYOND = "ValueError: 값이 없습니다", "ValueError: \U0001f600"
ESCAPED = KOREAN.encode("ascii", "backslashreplace").decode()


@pytest.fixture
def in_encoding(postgresql_server, clock):
    """Return a function that yields an application on a new database with an encoding."""

    def made(encoding):
        options = f"ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        with (
            new_postgresql_database(postgresql_server.url, options) as url,
            application(url, clock=clock) as dynbeat,
        ):
            yield dynbeat

    return made


@pytest.fixture
def dynbeat(in_encoding, request):
    yield from in_encoding(request.param)


def failed_run(dynbeat, error):
    """Let a task fail with ``error``, and return its run from the history."""
    beat, mine = ManualBeat(dynbeat), dynbeat.schedules.for_owner("user:42")
    mine.create("n", task="t", trigger=MINUTELY)
    dynbeat.context.clock.advance(timedelta(minutes=1))
    beat.run_until_idle()
    [run] = beat.publisher.sent
    worker = WorkerStub(dynbeat)
    assert worker.start(run)
    Recorder(
        dynbeat.context.database,
        settings=dynbeat.context.settings,
        notify=dynbeat.context.notifier.notify,
    ).record(
        Outcome(
            run_id=run.run_id,
            attempt=1,
            worker=worker.name,
            status=Status.FAILED,
            at=dynbeat.context.clock.now(),
            error=error,
            traceback=error,
        )
    )
    [found] = mine.runs()
    return found


@pytest.mark.parametrize(
    ("dynbeat", "stored"),
    [("LATIN1", ESCAPED), ("SQL_ASCII", KOREAN), ("EUC_KR", KOREAN)],
    indirect=["dynbeat"],
)
def test_an_outcome_is_stored_in_any_encoding(dynbeat, stored):
    run = failed_run(dynbeat, KOREAN)

    assert (run.status, run.error, run.traceback) == (Status.FAILED, stored, stored)


@pytest.mark.parametrize("shared", ["postgresql", "mariadb"])
@pytest.mark.empty_database
def test_an_outcome_is_stored_over_a_connection_of_another_encoding(request, clock, shared):
    url, encoding = {
        "postgresql": ("postgresql_url", "client_encoding=LATIN1"),
        "mariadb": ("mariadb_url", "charset=utf8"),
    }[shared]
    url = request.getfixturevalue(url).partition("?")[0]
    engine = create_engine(f"{url}?{encoding}")
    with application(url, engine=engine, clock=clock) as dynbeat:
        schema.upgrade(Database(engine=engine))

        run = failed_run(dynbeat, BEYOND)

    engine.dispose()
    assert (run.status, run.error) == (Status.FAILED, "ValueError: \\U0001f600")


@pytest.mark.parametrize("dynbeat", ["LATIN1"], indirect=True)
def test_the_error_of_a_schedule_is_stored_escaped(dynbeat):
    mine = dynbeat.schedules.for_owner("user:42")
    row = mine.create("n", task="t", trigger=MINUTELY)
    database = dynbeat.context.database
    quarantined = {"id": row.id, "next_run_at": None, "error": KOREAN}
    database.run(lambda session: due.advance(session, [quarantined]))
    assert mine.get("n").error == ESCAPED

    mine.update("n", trigger=MINUTELY)
    version = mine.get("n").version
    database.run(
        lambda session: due.quarantine(session, schedule_id=row.id, version=version, error=KOREAN)
    )
    assert mine.get("n").error == ESCAPED


@pytest.mark.parametrize("dynbeat", ["LATIN1"], indirect=True)
def test_a_name_that_the_database_cannot_store_is_rejected(dynbeat):
    mine = dynbeat.schedules.for_owner("user:42")

    with pytest.raises(InvalidArgumentError, match="encoding does not have"):
        mine.create("값", task="t", trigger=MINUTELY)
    with pytest.raises(InvalidArgumentError, match="encoding does not have"):
        dynbeat.schedules.create_many(
            [{"owner": "user:42", "name": "값", "task": "t", "trigger": MINUTELY}]
        )

    assert mine.create("é", task="t", trigger=MINUTELY).name == "é"


@pytest.mark.parametrize(
    ("dynbeat", "warned"), [("LATIN1", True), ("UTF8", False)], indirect=["dynbeat"]
)
def test_a_process_warns_about_the_encoding_once(dynbeat, warned, caplog):
    with caplog.at_level(logging.WARNING, logger="celery_dynbeat.db.types"):
        dynbeat.context.prepare()
        schema.check(dynbeat.context.database)

    warnings = [record for record in caplog.records if record.event == "encoding_limited"]
    assert len(warnings) == warned
    if warned:
        assert "LATIN1" in warnings[0].message
        assert "UTF8" in warnings[0].message


@pytest.mark.parametrize("dynbeat", ["LATIN1"], indirect=True)
def test_an_entry_that_the_database_cannot_store_is_refused_and_the_others_run(dynbeat, caplog):
    entry = {"task": "t", "schedule": 60}
    conf = dynbeat.context.app.conf
    conf.beat_schedule = {"turned": entry}
    config_sync.sync(dynbeat.context)

    conf.beat_schedule = {
        "값": entry,
        "described": {**entry, "description": "값"},
        "turned": {**entry, "description": "값", "overlap": "값"},
        "good": entry,
    }
    config_sync.sync(dynbeat.context)

    rows = {row.name: row for row in dynbeat.schedules.list() if row.task == "t"}
    assert rows.keys() == {"good", "turned"}
    assert rows["good"].enabled
    assert not rows["turned"].enabled
    refused = [each for each in caplog.records if getattr(each, "event", "") == "config_refused"]
    assert len(refused) == 3
