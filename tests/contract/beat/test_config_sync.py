"""The rows of Celery's beat_schedule follow the configuration; a refused entry is paused."""

from datetime import timedelta

import pytest
from celery.schedules import crontab, schedule
from sqlalchemy import create_engine, select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from celery_dynbeat import Cron, Every, Once
from celery_dynbeat.beat import config_sync
from celery_dynbeat.beat.runtime import BeatRuntime
from celery_dynbeat.cli.status import _lines, as_dict
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Node, Schedule
from celery_dynbeat.health.checks import evaluate
from celery_dynbeat.health.probes import collect_health
from celery_dynbeat.store import nodes
from celery_dynbeat.store.health import MAX_NAMED
from tests.support.applications import MINUTELY, START
from tests.support.lock_waits import failing_waits
from tests.support.refusals import accept, refuse
from tests.support.suites import each_database

MINUTE = timedelta(minutes=1)
ENTRY = {"task": "t", "schedule": 60}
#: An interval that counts from the start of beat is not supported.
INVALID = {**ENTRY, "relative": True}
WITH_CALENDAR = {"task": "t", "schedule": Cron("0 12 * * *").excluding(calendar="holidays")}


@pytest.fixture
def start(dynbeat):
    """Give the function that writes ``beat_schedule``, as a beat does when it starts."""
    dynbeat.app.conf.result_expires = None

    def with_entries(**entries):
        dynbeat.app.conf.beat_schedule = entries
        config_sync.sync(dynbeat.context)

    return with_entries


@pytest.fixture
def own(dynbeat):
    """Give the schedules of the application itself."""
    return dynbeat.schedules.for_owner("")


def new_runtime(dynbeat):
    """Return a beat, which has written ``beat_schedule``."""
    return BeatRuntime(
        dynbeat.context,
        wake=lambda: None,
        failpoint=lambda _: None,
        poll_interval=timedelta(seconds=1),
    )


def other_beat(name, at):
    """Return the row of a beat with other entries, which started at ``at``."""
    return Node(
        kind="beat",
        name=name,
        pid=1,
        started_at=at,
        seen_at=at,
        entries_digest="other",
        entries_seen_at=at,
    )


def pass_with_retry(runtime):
    """Make a pass that tries the entries again that were left out."""
    runtime._sync.expect()
    runtime.run_pass()


def status(dynbeat):
    """Return the output of ``dynbeat status``: as JSON, and as text."""
    report = collect_health(dynbeat.app)
    verdict = evaluate(report)
    return as_dict(report, verdict), "\n".join(_lines(report, verdict))


@each_database
def test_an_entry_takes_the_policies_of_the_api(start, own):
    policies = {
        "overlap": "skip",
        "max_run_time": MINUTE,
        "window": 7,
        "catch_up": "none",
        "catch_up_window": 90,
        "expires_after": 30,
        "on_lost": "rerun",
        "pause_after_failures": 3,
        "start_at": START + MINUTE,
        "end_at": START + 60 * MINUTE,
        "max_runs": 5,
        "description": "of the configuration",
        "tags": ["a"],
        "finish_within": timedelta(seconds=90),
    }
    start(n={**ENTRY, **policies})

    info = own.get("n")
    seconds = {key: timedelta(seconds=n) for key, n in (("window", 7), ("expires_after", 30))}
    expected = {**policies, **seconds, "catch_up_window": timedelta(seconds=90)}
    assert {key: getattr(info, key) for key in policies} == expected


def test_a_policy_that_is_removed_from_an_entry_returns_to_its_default(start, own):
    start(n={**ENTRY, "overlap": "skip", "tags": ["a"]})
    start(n=ENTRY)

    assert (own.get("n").overlap, own.get("n").tags) == (None, [])


def test_an_entry_with_another_rule_at_each_start_is_logged(start, clock, caplog):
    def start_at(minute):
        clock.move_to(clock.now() + timedelta(hours=6))
        caplog.clear()
        start(n={**ENTRY, "schedule": crontab(minute, 9)}, steady=ENTRY)
        found = [each for each in caplog.records if getattr(each, "event", "") == "config_unsteady"]
        return [each.schedule for each in found]

    assert [start_at(minute) for minute in (7, 41, 13)] == [[], [], []]
    assert start_at(13) == []
    assert start_at(52) == ["n"]
    clock.move_to(clock.now() + timedelta(days=7))
    assert start_at(3) == []


def test_an_edit_of_a_row_lasts_until_the_next_start_and_a_pause_stays(start, own):
    start(n=ENTRY, deleted=ENTRY)
    own.update("n", trigger=Every(5), overlap="skip", description="edited")
    own.pause("n", reason="incident")
    own.delete("deleted")

    start(n=ENTRY, deleted=ENTRY)

    info = own.get("n")
    assert (info.trigger, info.overlap, info.description) == (Every(60), None, "")
    assert (info.enabled, info.paused_reason) == (False, "incident")
    assert own.get("deleted").enabled


def test_a_start_with_the_same_entries_changes_nothing(start, own, clock, beat):
    entries = {"n": {**ENTRY, "overlap": "skip", "window": 5}, "once": at_once()}
    start(**entries)
    clock.advance(2 * MINUTE)
    beat.run_until_idle()
    versions = {name: own.get(name).version for name in entries}

    start(**entries)

    assert {name: own.get(name).version for name in entries} == versions


def test_an_unnamed_task_with_long_arguments_gets_a_name_that_stays(dynbeat, own):
    app = dynbeat.app
    app.conf.result_expires = None

    @app.task(name="unnamed")
    def task(text):
        pass

    for end in "ab":
        app.add_periodic_task(60, task.s("x" * 300 + end))
    config_sync.sync(dynbeat.context)
    first = [(row.id, row.name) for row in own.list()]
    config_sync.sync(dynbeat.context)

    assert [(row.id, row.name) for row in own.list()] == first
    assert len(first) == 2
    assert {len(name) for _, name in first} == {255}


def at_once():
    return {"task": "t", "schedule": Once(START + MINUTE)}


def test_an_entry_that_became_invalid_is_paused_with_the_reason(start, own, clock, beat, sent):
    start(n=ENTRY, other=ENTRY)
    clock.advance(MINUTE)
    beat.run_until_idle()

    start(n=INVALID, other=ENTRY)
    clock.advance(MINUTE)
    beat.run_until_idle()

    info = own.get("n")
    assert not info.enabled
    assert "relative = True: " in info.paused_reason
    assert [run.name for run in sent].count("n") == 1
    assert [run.name for run in sent].count("other") == 2
    # The run of the earlier form that has not started is revoked.
    assert [run.status for run in own.runs("n")] == [Status.REVOKED]


@pytest.mark.parametrize(
    "invalid",
    [
        {**ENTRY, "overlap": "sometimes"},
        {**ENTRY, "end_at": START - MINUTE},
        {"task": "t", "schedule": "0 9 * * 99"},
        {"task": "t"},
        "text",
    ],
)
def test_an_invalid_entry_is_paused(start, own, invalid):
    start(n=ENTRY)
    start(n=invalid)

    assert not own.get("n").enabled


def test_an_entry_that_is_valid_again_is_planned_from_now(start, own, clock, beat, sent):
    start(n=ENTRY)
    start(n=INVALID)
    clock.advance(5 * MINUTE)

    start(n={**ENTRY, "args": [2]})
    beat.run_until_idle()
    assert not sent
    clock.advance(MINUTE)
    beat.run_until_idle()

    info = own.get("n")
    assert (info.enabled, info.paused_reason, info.args) == (True, None, [2])
    assert [run.name for run in sent] == ["n"]
    (skipped,) = own.runs("n", status=Status.SKIPPED)
    assert (skipped.fire_count, skipped.error) == (5, "missed: the schedule was paused")


def test_a_schedule_made_through_the_api_is_not_paused_by_an_entry_of_its_name(start, own):
    own.create("n", task="t", trigger=MINUTELY)

    start(n=INVALID)
    start(n=ENTRY)

    assert own.get("n").enabled


def test_status_shows_refused_entries_with_the_reason_and_the_fix(start, own, dynbeat):
    names = [f"n{number}" for number in range(MAX_NAMED + 1)]
    start(**dict.fromkeys(names, ENTRY), paused=ENTRY)
    own.pause("paused", reason="incident")
    assert status(dynbeat)[0]["schedules"]["refused"] == {"count": 0, "exact": True}

    start(**dict.fromkeys(names, INVALID), paused=INVALID)

    report, text = status(dynbeat)
    assert report["schedules"]["refused"] == {"count": len(names), "exact": True}
    assert [each["name"] for each in report["schedules"]["refused_first"]] == names[:MAX_NAMED]
    assert report["schedules"]["refused_first"][0]["reason"].startswith("relative = True: ")
    (warning,) = [each for each in report["warnings"] if each["code"] == "entries_refused"]
    assert "restart beat" in warning["hint"]
    assert "beat_schedule['n0']: relative = True: " in text
    assert f"entries refused {len(names)}" in text


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("name", ["older", "newer"])
def test_a_second_try_is_left_to_a_beat_that_started_later(dynbeat, start, own, name):
    start(locked=ENTRY)
    dynbeat.app.conf.beat_schedule = {"locked": {**ENTRY, "task": "changed"}}
    engine = dynbeat.context.database.engine
    with Session(engine) as holder:
        holder.execute(select(Schedule).where(Schedule.name == "locked").with_for_update())
        runtime = new_runtime(dynbeat)
        runtime.run_pass()
    delta = timedelta(hours=-1 if name == "older" else 1)
    with Session(engine) as session:
        started_at = session.scalar(select(Node.started_at)) + delta
        session.add(other_beat(name, started_at))
        session.commit()

    pass_with_retry(runtime)
    runtime.close()

    assert own.get("locked").task == ("changed" if name == "older" else "t")


def test_a_beat_starts_although_the_database_refuses_an_entry(dynbeat, own, clock):
    refuse(dynbeat, action="INSERT", table="dynbeat_schedule", when="NEW.name = 'bad'")
    own.create("other", task="t", trigger=MINUTE)
    dynbeat.app.conf.beat_schedule = {"bad": ENTRY}

    runtime = new_runtime(dynbeat)
    runtime.run_pass()
    reported = [(each.kind, each.name) for each in runtime.report()]
    assert reported == [("duty", "write beat_schedule")]

    accept(dynbeat, table="dynbeat_schedule")
    clock.advance(MINUTE)
    pass_with_retry(runtime)
    assert own.get("bad").task == "t"
    assert runtime.report() == []
    runtime.close()


def test_an_outage_at_the_entries_stops_no_sending_and_is_noted(dynbeat, own, clock, monkeypatch):
    own.create("other", task="t", trigger=MINUTE)
    dynbeat.app.conf.beat_schedule = {"entry": ENTRY}
    runtime = new_runtime(dynbeat)
    lost = OperationalError("SELECT 1", {}, Exception("gone"), connection_invalidated=True)

    def fail(*_args, **_values):
        raise lost

    monkeypatch.setattr(nodes, "has_newer_entries", fail)
    clock.advance(2 * MINUTE)
    with pytest.raises(OperationalError):
        runtime.run_pass()

    assert [run.status for run in own.runs("other")] == [Status.SENT, Status.SKIPPED]
    # The entries wait, so that the next passes succeed.
    runtime.run_pass()
    monkeypatch.setattr(runtime.dispatcher, "_run_pass", fail)
    runtime._sync.expect()
    with pytest.raises(OperationalError):
        runtime.run_pass()
    assert runtime.dispatcher._silence._is_out
    runtime.close()


@pytest.fixture
def start_beat(dynbeat):
    """Give a function that starts and closes a beat with these entries."""
    dynbeat.app.conf.result_expires = None

    def with_entries(**entries):
        dynbeat.app.conf.beat_schedule = entries
        runtime = BeatRuntime(
            dynbeat.context, wake=lambda: None, failpoint=lambda _: None, poll_interval=MINUTE
        )
        runtime.close()

    return with_entries


@pytest.fixture
def is_written(dynbeat):
    """Give a function that returns whether the next start writes the entries.

    It changes the row of "one" as no edit does, without its version.
    """

    def by(start):
        with Session(dynbeat.context.database.engine) as session:
            session.execute(update(Schedule).where(Schedule.name == "one").values(task="other"))
            session.commit()
        start()
        with Session(dynbeat.context.database.engine) as session:
            return session.scalar(select(Schedule.task).where(Schedule.name == "one")) != "other"

    return by


CALENDAR = {"one": {"task": "t", "schedule": crontab(hour=4), "args": (1,)}}


@each_database
def test_a_start_does_not_write_the_entries_that_the_last_start_wrote(start_beat, is_written):
    start_beat(**CALENDAR, every={"task": "t", "schedule": timedelta(seconds=5)})

    assert not is_written(
        lambda: start_beat(every={"task": "t", "schedule": timedelta(seconds=5)}, **CALENDAR)
    )


@pytest.mark.parametrize(
    "entries",
    [
        {"one": {**CALENDAR["one"], "schedule": crontab(hour=5)}},
        {"one": {**CALENDAR["one"], "args": (2,)}},
        {**CALENDAR, "two": ENTRY},
        {**CALENDAR, "two": INVALID},
    ],
)
def test_a_start_writes_changed_entries(start_beat, is_written, entries):
    start_beat(**CALENDAR)

    assert is_written(lambda: start_beat(**entries))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"schedule": Cron("0 4 * * *")}, False),
        ({"schedule": schedule(60, nowfun=lambda: START)}, True),
        ({"finish_within": 90}, False),
    ],
)
def test_a_start_compares_only_known_types(start_beat, is_written, given, expected):
    entries = {**CALENDAR, "two": {**ENTRY, **given}}
    start_beat(**entries)

    assert is_written(lambda: start_beat(**entries)) is expected


@pytest.mark.parametrize("call", ["pause", "update", "delete"])
def test_a_start_writes_the_entries_after_an_edit_of_a_row(start_beat, is_written, own, call):
    start_beat(**CALENDAR, two=ENTRY)
    given = {"args": (3,)} if call == "update" else {}
    getattr(own, call)("two", **given)

    assert is_written(lambda: start_beat(**CALENDAR, two=ENTRY))


def test_a_start_writes_the_entries_after_a_change_of_the_settings(dynbeat, start_beat, is_written):
    start_beat(**CALENDAR)
    dynbeat.context.__dict__.pop("settings", None)
    dynbeat.app.conf.update(dynbeat_max_payload_bytes=999)

    assert is_written(lambda: start_beat(**CALENDAR))


def test_without_a_name_of_the_application_each_start_writes_the_entries(
    dynbeat, start_beat, is_written
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynbeat.app, "main", None)
        dynbeat.context.__dict__.pop("settings", None)
        start_beat(**CALENDAR)

        assert is_written(lambda: start_beat(**CALENDAR))


def test_an_entry_is_planned_when_its_calendar_is_put(start, own, dynbeat, caplog):
    start(n=ENTRY, other=ENTRY)
    dynbeat.app.conf.beat_schedule = {"n": WITH_CALENDAR, "other": ENTRY}
    left = config_sync.sync(dynbeat.context)

    [record] = [each for each in caplog.records if each.levelname == "ERROR"]
    assert "beat_schedule['n'] is refused" in record.getMessage()
    assert "calendar 'holidays': there is no calendar with this name" in record.getMessage()
    assert "create it with dynbeat.calendars.upsert()" in record.getMessage()
    assert (own.get("n").enabled, own.get("other").enabled) == (False, True)

    # The same error is logged once, and the row does not change.
    caplog.clear()
    version = own.get("n").version
    dynbeat.calendars.upsert("other", dates=[START.date()])
    left = config_sync.sync(dynbeat.context, only=left)
    assert (list(left), caplog.records) == (["n"], [])
    assert own.get("n").version == version

    dynbeat.calendars.upsert("holidays", dates=[START.date()])
    assert config_sync.sync(dynbeat.context, only=left) == {}
    assert own.get("n").next_run_at == START + timedelta(days=1, hours=3)
    # It is linked.
    assert dynbeat.calendars.get("holidays").schedules.count == 1


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
@pytest.mark.parametrize("held", ["owner", "calendar"])
def test_a_second_try_does_not_wait_for_an_application(dynbeat, own, held):
    own.set_timezone("Asia/Seoul")
    dynbeat.app.conf.result_expires = None
    dynbeat.app.conf.beat_schedule = {"n": WITH_CALENDAR}
    left = config_sync.sync(dynbeat.context)
    dynbeat.calendars.upsert("holidays", dates=[START.date()])
    engine = dynbeat.context.database.engine
    holding = create_engine(engine.url, isolation_level="READ COMMITTED")
    with failing_waits(engine) as waits, Session(holding) as holder:
        if held == "owner":
            own.bound(session=holder).set_timezone("Europe/Berlin")
        else:
            dynbeat.calendars.bound(session=holder).upsert(
                "holidays", dates=[START.date()], weekend=[]
            )
        left = config_sync.sync(dynbeat.context, only=left, waits=False)
        holder.rollback()
    holding.dispose()

    assert (list(left), waits) == (["n"], [])
    assert config_sync.sync(dynbeat.context, only=left) == {}
    assert own.get("n").timezone == "Asia/Seoul"


OLD, NEW = {"one": ENTRY, "gone": ENTRY}, {"one": {**ENTRY, "task": "new"}, "added": ENTRY}


@pytest.fixture
def run_beat(dynbeat, monkeypatch):
    """Give a function that starts a beat with these entries on a separate host."""
    dynbeat.app.conf.result_expires = None
    beats = []

    def started(host, entries):
        monkeypatch.setattr("socket.gethostname", lambda: host)
        dynbeat.app.conf.beat_schedule = entries
        runtime = new_runtime(dynbeat)
        # Each of them has threads, also one that another beat of its host replaces.
        beats.append(runtime)
        runtime.run_pass()
        return runtime

    yield started
    for runtime in beats:
        runtime.close()


def compare(dynbeat, runtime, entries):
    """Make the pass of a beat that compares its entries with those of the other beats."""
    dynbeat.app.conf.beat_schedule = entries
    pass_with_retry(runtime)


def events_of(caplog):
    return [getattr(record, "event", None) for record in caplog.records]


def entries_of(own):
    return {row.name: row.task for row in own.list()}


@each_database
def test_a_restarted_beat_of_an_old_release_does_not_write_its_entries(
    dynbeat, own, clock, run_beat, caplog
):
    run_beat("a", OLD)
    clock.advance(MINUTE)
    new = run_beat("b", NEW)
    newest = entries_of(own)
    old = run_beat("a", OLD)
    assert entries_of(own) == newest == {"one": "new", "added": "t"}
    assert events_of(caplog).count("config_superseded") == 1
    [warning] = [
        each
        for each in evaluate(collect_health(dynbeat.app)).warnings
        if each.code == "entries_differ"
    ]
    assert "1 beat with older entries of beat_schedule: celerybeat@a:" in warning.text

    compare(dynbeat, old, OLD)
    compare(dynbeat, new, NEW)
    assert entries_of(own) == newest
    assert events_of(caplog).count("config_superseded") == 1


def test_a_running_beat_writes_its_entries_when_the_newer_ones_are_gone(
    dynbeat, own, clock, run_beat
):
    timeout = dynbeat.context.settings.node_timeout
    run_beat("a", OLD)
    clock.advance(MINUTE)
    run_beat("b", NEW).close()
    # A rollback: the old release starts while the new one runs, which then ends.
    clock.advance(MINUTE)
    new = run_beat("b", NEW)
    old = run_beat("c", OLD)
    new.close()
    compare(dynbeat, old, OLD)
    assert entries_of(own) == {"one": "new", "added": "t"}

    clock.advance(timeout + timedelta(seconds=1))
    compare(dynbeat, old, OLD)
    assert entries_of(own) == {"one": "t", "gone": "t"}


def test_a_beat_that_starts_alone_writes_its_entries(own, clock, run_beat):
    run_beat("a", OLD).close()
    clock.advance(MINUTE)
    run_beat("b", NEW).close()
    run_beat("a", OLD)

    assert entries_of(own) == {"one": "t", "gone": "t"}
