"""The arguments of each call: accepted types, and errors that name the fix."""

import logging
from datetime import timedelta
from functools import partial
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab
from django.utils.functional import lazystr
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import scoped_session, sessionmaker

from celery_dynbeat import (
    ConfigurationError,
    Cron,
    Dynbeat,
    Every,
    InvalidArgumentError,
    InvalidTriggerError,
    Once,
)
from celery_dynbeat.common.events import Event
from celery_dynbeat.process.task_names import MAX_WARNED
from tests.support.applications import MINUTELY, START, application, execute

MINUTE = timedelta(minutes=1)


@pytest.fixture
def send(dynbeat):
    """Return a task of the application."""

    @dynbeat.app.task(name="mail.send", shared=False)
    def send():
        """Send."""

    return send


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("0 9 * * mon-fri", Cron("0 9 * * mon-fri", timezone="UTC")),
        ("PT5M", Every(300)),
        (timedelta(minutes=5), Every(300)),
        (START + MINUTE, Once(START + MINUTE)),
        (crontab(minute=0), Cron("0 * * * *", timezone="UTC")),
    ],
    ids=repr,
)
def test_each_call_accepts_each_type_of_trigger(dynbeat, mine, send, given, expected):
    mine.create("a", task=send, trigger=given)
    mine.upsert("b", task=send, trigger=given)
    mine.create("c", task="t", trigger=Every(7))
    mine.update("c", task=send, trigger=given)
    dynbeat.schedules.create_many(
        [{"owner": "user:42", "name": "d", "task": send, "trigger": given}]
    )

    assert [(each.trigger, each.task) for each in mine.list()] == [(expected, "mail.send")] * 4


def test_an_invalid_trigger_string_is_rejected_with_its_field(dynbeat, mine):
    with pytest.raises(InvalidTriggerError) as refusal:
        mine.create("n", task="t", trigger="0 25 * * *")
    with pytest.raises(InvalidTriggerError, match="schedule 0 of create_many: hour") as numbered:
        dynbeat.schedules.create_many([{"name": "n", "task": "t", "trigger": "0 25 * * *"}])

    assert (refusal.value.field, numbered.value.field) == ("hour", "hour")
    assert not dynbeat.schedules.list()


@pytest.mark.parametrize("call", ["create", "create_many"])
def test_a_schedule_can_be_created_paused(dynbeat, mine, clock, beat, sent, call):
    new = {"task": "t", "trigger": MINUTELY, "enabled": False}
    with dynbeat.acting(actor="alice", reason="not yet paid"):
        if call == "create":
            mine.create("n", **new)
        else:
            dynbeat.schedules.create_many([{"owner": "user:42", "name": "n", **new}])
    made = mine.get("n")
    clock.advance(2 * MINUTE)
    beat.run_until_idle()

    assert (made.enabled, made.paused_reason, made.next_run_at) == (False, "not yet paid", None)
    assert sent == []
    assert mine.resume("n").next_run_at == clock.now() + MINUTE
    assert [(run.status, run.fire_count) for run in mine.runs("n")] == [("skipped", 2)]


@pytest.mark.parametrize(
    ("call", "given", "field", "reason"),
    [
        ("create", {"enabled": 1}, "enabled", "True or False"),
        ("create", {"paused_reason": "why"}, "paused_reason", "call pause\\(reason="),
        ("create", {"paused_until": START}, "paused_until", "call pause\\(until="),
        ("upsert", {"enabled": False}, "enabled", "pause\\(\\) and resume"),
        ("update", {"enabled": False}, "enabled", "call pause\\(\\) or resume"),
        ("update", {"name": "other"}, "name", "does not rename a schedule; call rename"),
        ("update", {"expected_version": "1"}, "expected_version", "read as .version"),
        ("update", {"session": "x"}, "session", r"for_owner\(owner, session=...\)"),
        ("create", {"actor": "ann"}, "actor", r"for_owner\(owner, actor=...\)"),
        ("update", {"priority": 300}, "priority", "from 0 to 255 .*Redis 0 to 9"),
        ("update", {"queue": 5}, "queue", "must be a string"),
        ("update", {"options": {"priority": 300}}, "options['priority']", "from 0 to 255"),
        ("update", {"options": {"expires": 60}}, "options['expires']", "expires_after="),
        ("update", {"options": {"eta": START}}, "options", "JSON"),
        ("update", {"options": {"eta": "x"}}, "options['eta']", "start_at="),
        ("update", {"options": {"link": "x"}}, "options['link']", "write a task that starts"),
        ("update", {"options": {"ques": "x"}}, "options['ques']", "did you mean queue"),
        ("update", {"eta": START}, "eta", "start_at="),
        ("update", {"countdown": 5}, "countdown", "Once.after"),
        ("update", {"expires": START}, "expires", "end_at .*expires_after"),
        ("create", {"crontab": "0 9 * * *"}, "crontab", "use trigger: a string"),
        ("update", {"interval": 60}, "interval", "use trigger: a string"),
        ("create", {"options": {"serializer": "pickle"}}, "options['serializer']", "accept_cont"),
        ("update", {"options": {"serializer": "yaml"}}, "options['serializer']", "accept_content"),
        ("update", {"serializer": "json"}, "serializer", "options={'serializer': "),
        ("create", {"end_at": START - MINUTE}, "end_at", "lies in the past"),
    ],
)
def test_an_invalid_argument_is_named_with_the_fix(sqlite_url, clock, call, given, field, reason):
    with application(sqlite_url, clock=clock) as dynbeat:
        mine = dynbeat.schedules.for_owner("user:42")
        mine.create("n", task="t", trigger=MINUTELY)
        arguments = given if call == "update" else {"task": "t", "trigger": MINUTELY, **given}

        with pytest.raises(InvalidArgumentError, match=reason) as refusal:
            getattr(mine, call)("n" if call == "update" else "new", **arguments)

        assert refusal.value.field == field
        assert [(each.name, each.version) for each in mine.list()] == [("n", 1)]


def test_a_serializer_that_only_workers_register_is_no_error(sqlite_url, clock):
    with application(sqlite_url, clock=clock) as dynbeat:
        dynbeat.app.conf.accept_content = ["json", "serializer-of-the-workers"]
        mine = dynbeat.schedules.for_owner("user:42")

        mine.create("n", task="t", trigger=MINUTELY, options={"serializer": "json"})
        with pytest.raises(InvalidArgumentError, match="accept_content"):
            mine.update("n", options={"serializer": "pickle"})


def test_update_accepts_the_name_as_a_keyword(mine):
    mine.create(name="n", task="t", trigger=MINUTELY)

    assert mine.update(name="n", task="u").task == "u"


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
    mine.create("a", task="mail.sned", trigger=MINUTELY)
    mine.upsert("b", task="mail.sned", trigger=MINUTELY)
    mine.create("c", task="mail.send", trigger=MINUTELY)
    mine.update("c", task="report.build")

    first, second = warnings()
    assert "'mail.sned' is not registered" in first
    assert "(did you mean 'mail.send'?);" in first
    assert "'report.build'" in second
    assert "did you mean" not in second


def test_a_process_without_tasks_logs_no_warning(dynbeat, mine, warnings):
    # The shared tasks of other tests are registered in this application too.
    for name in [name for name in dynbeat.app.tasks if not name.startswith("celery.")]:
        dynbeat.app.tasks.unregister(name)

    mine.create("a", task="mail.send", trigger=MINUTELY)

    assert warnings() == []


@pytest.mark.usefixtures("send")
def test_the_number_of_warnings_for_each_process_is_bounded(dynbeat, warnings):
    for number in range(MAX_WARNED + 5):
        dynbeat.context.task_names.warn_if_unknown(f"t{number}")

    assert len(warnings()) == MAX_WARNED


def test_an_unreadable_task_registry_does_not_prevent_a_create(dynbeat, mine, caplog):
    @dynbeat.app.task(name="broken", base="no.such.Base", shared=False)
    def broken():
        """Fail when Celery creates it."""

    mine.create("a", task="t", trigger=MINUTELY)

    assert mine.get("a").task == "t"
    assert "cannot be read" in caplog.text


def test_the_h_of_a_returned_trigger_has_the_values_of_its_schedule(mine, clock, beat, sent):
    trigger = Cron("H H * * *", timezone="Asia/Seoul")
    made = mine.create("digest", task="t", trigger=trigger)
    clock.move_to(made.next_run_at)
    beat.run_until_idle()

    read = mine.get("digest").trigger

    assert (read.spec, read.timezone) == (trigger.spec, "Asia/Seoul")
    assert read.next_after(START) == sent[0].fire_at
    assert mine.list()[0].trigger.next_after(START) == sent[0].fire_at
    assert mine.update("digest", trigger=read).version == made.version


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
