"""The arguments of each call: accepted types, and errors that name the fix."""

import logging
from datetime import timedelta
from functools import partial
from zoneinfo import ZoneInfo

import pytest
from django.utils.functional import lazystr
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import scoped_session, sessionmaker

from celery_dynbeat import (
    ConfigurationError,
    Dynbeat,
    Every,
    InvalidArgumentError,
    InvalidTriggerError,
)
from celery_dynbeat.common.events import Event
from celery_dynbeat.process.task_names import MAX_WARNED
from tests.support.applications import MINUTELY, START, application, execute

MINUTE = timedelta(minutes=1)


@pytest.fixture
def send(dynbeat):
    """Return a task of the application. Shared tasks of other tests have no similar name."""

    @dynbeat.app.task(name="postbox.send", shared=False)
    def send():
        """Send."""

    return send


@pytest.mark.parametrize(
    ("session", "reason"),
    [("x", "must be a sqlalchemy.orm.Session"), (AsyncSession(), "await session.run_sync")],
)
def test_only_a_session_can_be_bound(dynbeat, session, reason):
    mine = dynbeat.schedules.for_owner("user:42", session=session)

    with pytest.raises(InvalidArgumentError, match=reason) as refusal:
        mine.get("n")
    assert refusal.value.field == "session"


def test_a_scoped_session_is_accepted(sqlite_url, clock):
    engine = create_engine(sqlite_url)
    with application(sqlite_url, clock=clock, engine=engine) as dynbeat:
        dynbeat.context.prepare()
        mine = dynbeat.schedules.for_owner("user:42")
        session = scoped_session(sessionmaker(engine))

        mine.bound(session=session).create("kept", task="t", trigger=MINUTELY)
        session.commit()
        mine.bound(session=session).create("undone", task="t", trigger=MINUTELY)
        session.rollback()
        session.remove()

        assert [each.name for each in mine.list()] == ["kept"]
    engine.dispose()


def test_an_asynchronous_engine_is_rejected_with_the_fix(dynbeat):
    engine = create_async_engine("postgresql+psycopg_async://host/name")

    for given in (engine, engine.sync_engine):
        with pytest.raises(ConfigurationError, match=r"engine is asynchronous.*psycopg://"):
            Dynbeat(dynbeat.app, engine=given)
    with pytest.raises(ConfigurationError, match=r"engine is of type str: .*create_engine"):
        Dynbeat(dynbeat.app, engine="sqlite://")


def test_the_url_of_an_asynchronous_driver_is_rejected_with_the_fix():
    with (
        application("postgresql+psycopg_async://user:secret@host/name") as dynbeat,
        pytest.raises(ConfigurationError, match=r"postgresql\+psycopg_async of .*use") as refusal,
    ):
        dynbeat.context.prepare()

    assert "use postgresql+psycopg://" in str(refusal.value)
    assert "secret" not in str(refusal.value)


@pytest.fixture
def warnings(caplog):
    """Return a function that returns the messages of the warnings about unknown tasks."""
    caplog.set_level(logging.WARNING, "celery_dynbeat")
    return lambda: [
        record.getMessage()
        for record in caplog.records
        if getattr(record, "event", None) == Event.TASK_UNKNOWN
    ]


@pytest.mark.usefixtures("send")
def test_an_unknown_task_logs_one_warning_with_similar_names(mine, warnings):
    mine.create("a", task="postbox.sned", trigger=MINUTELY)
    mine.upsert("b", task="postbox.sned", trigger=MINUTELY)
    mine.create("c", task="postbox.send", trigger=MINUTELY)
    mine.update("c", task="report.build")

    first, second = warnings()
    assert "'postbox.sned' is not registered" in first
    assert "(did you mean 'postbox.send'?);" in first
    assert "'report.build'" in second
    assert "did you mean" not in second


def test_a_process_without_tasks_logs_no_warning(dynbeat, mine, warnings):
    # The shared tasks of other tests are registered in this application too.
    for name in [name for name in dynbeat.app.tasks if not name.startswith("celery.")]:
        dynbeat.app.tasks.unregister(name)

    mine.create("a", task="postbox.send", trigger=MINUTELY)

    assert warnings() == []


@pytest.mark.usefixtures("send")
def test_the_number_of_warnings_for_each_process_is_bounded(dynbeat, warnings):
    for number in range(MAX_WARNED + 5):
        dynbeat.context.task_names.warn_if_unknown(f"t{number}")

    assert len(warnings()) == MAX_WARNED


@pytest.fixture
def quarantined(dynbeat, mine, clock, beat):
    """Return a schedule that beat quarantined."""
    mine.create("bad", task="t", trigger=MINUTELY)
    execute(dynbeat, "UPDATE dynbeat_schedule SET trigger_spec = 'odd' WHERE name = 'bad'")
    clock.advance(MINUTE)
    beat.run_until_idle()
    return mine.get("bad")


@pytest.mark.parametrize(
    "call",
    [
        lambda mine: mine.resume("bad"),
        lambda mine: mine.update("bad", max_runs=5),
        lambda mine: mine.upcoming("bad"),
        lambda mine: mine.backfill("bad", since=START, until=START + timedelta(seconds=1)),
    ],
    ids=["resume", "update", "upcoming", "backfill"],
)
def test_a_quarantined_schedule_is_named_in_the_error_of_each_call(mine, quarantined, call):
    with pytest.raises(InvalidTriggerError) as refusal:
        call(mine)

    message = str(refusal.value)
    assert "schedule 'bad' of owner 'user:42' cannot be planned: interval 'odd'" in message
    assert "another trigger with update()" in message
    assert mine.get("bad") == quarantined


@pytest.mark.parametrize("call", ["create", "upsert", "create_many"])
def test_the_fields_of_another_library_are_named_when_the_trigger_is_missing(mine, dynbeat, call):
    given = {"name": "n", "task": "t", "interval": 60}
    many = partial(dynbeat.schedules.create_many, [given])
    create = many if call == "create_many" else partial(getattr(mine, call), **given)

    with pytest.raises(InvalidArgumentError, match="use trigger: a string") as refusal:
        create()

    assert refusal.value.field == "interval"


def test_lazy_texts_and_zones_are_stored_as_text(mine):
    lazy = lazystr("P1D")
    made = mine.create("n", task="t", trigger=lazy, description=lazy, tags=[lazy])
    mine.set_timezone(ZoneInfo("Asia/Seoul"))

    assert (made.description, made.tags, mine.timezone()) == ("P1D", ["P1D"], "Asia/Seoul")
    assert mine.get("n").trigger == Every(days=1, timezone="Asia/Seoul")
