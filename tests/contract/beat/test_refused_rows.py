"""A row that the database refuses stops no other row. It is quarantined, or left out and named."""

import errno
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError

from celery_dynbeat import Cron, Every
from celery_dynbeat.beat import decisions, outgoing_runs
from celery_dynbeat.common import settings
from celery_dynbeat.process.left_out import RETRY_AFTER
from celery_dynbeat.store import runs
from celery_dynbeat.testing import ManualBeat
from celery_dynbeat.triggers import zones
from tests.support.applications import MINUTELY, application, execute
from tests.support.ended_runs import start
from tests.support.refusals import accept, execute_ddl, refuse
from tests.support.suites import each_database

MINUTE = timedelta(minutes=1)
GOOD = 20


@pytest.fixture
def good(mine):
    """Create the schedules around the bad one, which is neither the first nor the last."""
    for number in range(GOOD // 2):
        mine.create(f"good-{number}", task="t", trigger=MINUTELY)
    mine.create("bad", task="t", trigger=MINUTELY)
    for number in range(GOOD // 2, GOOD):
        mine.create(f"good-{number}", task="t", trigger=MINUTELY)


def names_of(sent):
    return sorted({run.name for run in sent})


def good_names():
    return sorted(f"good-{number}" for number in range(GOOD))


def left_out(beat):
    return [(each.kind, each.name) for each in beat._dispatcher.report()]


@pytest.mark.usefixtures("good")
@each_database
def test_a_run_that_a_trigger_refuses_quarantines_its_schedule_and_the_others_are_sent(
    dynbeat, mine, clock, beat, sent
):
    refuse(dynbeat, action="INSERT", table="dynbeat_run", when="NEW.name = 'bad'")

    for _ in range(3):
        clock.advance(MINUTE)
        beat.run_until_idle()

    assert names_of(sent) == good_names()
    assert len(sent) == 3 * GOOD
    assert "refused by a trigger" in mine.get("bad").error
    assert left_out(beat) == []


@pytest.mark.usefixtures("good")
@pytest.mark.parametrize("table", ["dynbeat_run", "dynbeat_schedule"])
@each_database
def test_a_row_that_the_commit_refuses_stops_no_other(dynbeat, mine, clock, beat, sent, table):
    if dynbeat.context.database.engine.dialect.name != "postgresql":
        pytest.skip("only PostgreSQL has deferred triggers")
    execute_ddl(
        dynbeat,
        "CREATE FUNCTION refusing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.name = 'bad' THEN RAISE EXCEPTION 'refused at the commit'; END IF;"
        " RETURN NULL; END $$",
        f"CREATE CONSTRAINT TRIGGER refusing AFTER INSERT OR UPDATE ON {table}"
        " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refusing()",
    )

    for _ in range(3):
        clock.advance(MINUTE)
        beat.run_until_idle()

    assert names_of(sent) == good_names()
    assert len(sent) == 3 * GOOD
    if table == "dynbeat_run":
        assert "refused at the commit" in mine.get("bad").error
    else:
        ((kind, name),) = left_out(beat)
        assert (kind, "'bad' of 'user:42'" in name) == ("row", True)


@pytest.mark.usefixtures("good")
@each_database
def test_a_schedule_whose_every_change_is_refused_is_left_out_and_tried_again(
    dynbeat, clock, beat, sent
):
    refuse(dynbeat, action="UPDATE", table="dynbeat_schedule", when="OLD.name = 'bad'")

    for _ in range(2):
        clock.advance(MINUTE)
        beat.run_until_idle()

    assert names_of(sent) == good_names()
    assert len(sent) == 2 * GOOD
    ((kind, name),) = left_out(beat)
    assert kind == "row"
    assert "'bad' of 'user:42'" in name
    # Beat does not poll for it without a pause.
    assert beat.tick() > timedelta(seconds=1)

    accept(dynbeat, table="dynbeat_schedule")
    clock.advance(RETRY_AFTER)
    beat.run_until_idle()

    assert "bad" in names_of(sent)
    clock.advance(2 * RETRY_AFTER)
    beat.run_until_idle()
    assert left_out(beat) == []


@pytest.mark.usefixtures("good")
@each_database
def test_a_refused_row_stops_neither_planning_nor_the_end_of_pauses(dynbeat, mine, clock, beat):
    for each in (*good_names(), "bad"):
        mine.pause(each, until=clock.now() + MINUTE)
    mine.create("planned", task="t", trigger=MINUTELY)
    mine.create("unplannable", task="t", trigger=MINUTELY)
    execute(
        dynbeat,
        "UPDATE dynbeat_schedule SET next_run_at = NULL, next_fire_at = NULL"
        " WHERE name IN ('planned', 'unplannable')",
    )
    bad = "OLD.name IN ('bad', 'unplannable')"
    refuse(dynbeat, action="UPDATE", table="dynbeat_schedule", when=bad)

    clock.advance(MINUTE)
    beat.run_until_idle()

    assert all(mine.get(each).enabled for each in good_names())
    assert not mine.get("bad").enabled
    assert mine.get("planned").next_run_at is not None
    assert len(left_out(beat)) == 2


@pytest.mark.usefixtures("good")
@each_database
def test_a_refused_row_stops_no_hold_of_its_owner(dynbeat, mine, clock, beat, sent):
    mine.hold(reason="incident")
    refuse(dynbeat, action="UPDATE", table="dynbeat_schedule", when="OLD.name = 'bad'")

    clock.advance(MINUTE)
    beat.run_until_idle()

    assert sent == []
    held = dynbeat.context.database.read(
        lambda session: (
            session.connection()
            .exec_driver_sql("SELECT count(*) FROM dynbeat_schedule WHERE held_at IS NOT NULL")
            .scalar()
        )
    )
    assert held == GOOD


@each_database
def test_a_refused_row_stops_no_planning_after_a_change_of_its_calendar(dynbeat, mine, clock, beat):
    today = clock.now().date()
    dynbeat.calendars.upsert("days", dates=[today + timedelta(days=1)])
    daily = Cron("0 9 * * *").excluding(calendar="days")
    for name in ("dated", "refused"):
        mine.create(name, task="t", trigger=daily)
    before = mine.get("dated").next_run_at
    beat.run_until_idle()
    refuse(dynbeat, action="UPDATE", table="dynbeat_schedule", when="OLD.name = 'refused'")

    dynbeat.calendars.upsert("days", dates=[today + timedelta(days=2)])
    clock.advance(timedelta(minutes=1))
    beat.run_until_idle()

    assert mine.get("dated").next_run_at == before - timedelta(days=1)
    assert mine.get("refused").next_run_at == before
    assert dynbeat.calendars.get("days").waiting_schedules.count == 1


@each_database
def test_a_refused_batch_stops_no_other(dynbeat, mine, clock, beat, sent):
    other = dynbeat.schedules.for_owner("other")
    for each in (mine, other):
        each.create("n", task="t", trigger=Every(3600))
    clock.advance(timedelta(hours=2))
    beat.run_until_idle()
    for each in (mine, other):
        each.backfill("n", since=clock.now() - timedelta(hours=9), until=clock.now())
    refuse(dynbeat, action="UPDATE", table="dynbeat_run", when=f"OLD.owner = '{mine.owner}'")

    for _ in range(3):
        clock.advance(timedelta(seconds=10))
        beat.run_until_idle()

    assert {run.owner for run in sent if run.origin == "backfill"} == {"other"}


@pytest.mark.usefixtures("good")
@each_database
def test_a_run_whose_every_change_is_refused_stops_no_confirm_and_no_sweep(
    dynbeat, mine, clock, beat, sent
):
    refuse(dynbeat, action="UPDATE", table="dynbeat_run", when="OLD.name = 'bad'")
    clock.advance(MINUTE)
    beat.run_until_idle()
    assert {each.status for each in mine.runs("good-0")} == {"sent"}
    assert [each.status for each in mine.runs("bad")] == ["pending"]
    for each in good_names():
        mine.pause(each)
    execute(dynbeat, "UPDATE dynbeat_schedule SET next_run_at = NULL WHERE name = 'bad'")
    manual = mine.run_now("good-1")

    clock.advance(dynbeat.context.settings.dispatch_timeout + MINUTE)
    beat.run_until_idle()

    assert manual.id in {run.run_id for run in sent}
    assert [name for _, name in left_out(beat) if "'bad'" in name]


@each_database
def test_a_lost_run_whose_end_is_refused_hides_no_other(dynbeat, mine, clock, beat, sent):
    for name in ("bad", "good-0", "good-1"):
        mine.create(name, task="t", trigger=Every(3_600))
    clock.advance(timedelta(hours=1))
    beat.run_until_idle()
    for run in sent:
        start(dynbeat, run.run_id)
    refuse(dynbeat, action="UPDATE", table="dynbeat_run", when="OLD.name = 'bad'")

    clock.advance(2 * dynbeat.context.settings.node_timeout)
    beat.run_until_idle()

    statuses = {name: mine.runs(name)[0].status for name in ("bad", "good-0", "good-1")}
    assert statuses == {"bad": "running", "good-0": "lost", "good-1": "lost"}
    assert [name for _, name in left_out(beat) if "'bad'" in name]


def test_row_level_security_of_one_row_stops_no_other(postgresql_url, clock):
    with application(postgresql_url, clock=clock) as admin:
        admin.context.prepare()
        role = f"limited_{admin.context.database.engine.url.database}"
        mine = admin.schedules.for_owner("user:42")
        for name in ("bad", "good"):
            mine.create(name, task="t", trigger=MINUTELY)
        execute_ddl(
            admin,
            f"CREATE ROLE {role}",
            f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}",
            f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}",
            "ALTER TABLE dynbeat_run ENABLE ROW LEVEL SECURITY",
            f"CREATE POLICY reading ON dynbeat_run TO {role} USING (true)"
            " WITH CHECK (name <> 'bad')",
        )
        engine = create_engine(postgresql_url, connect_args={"options": f"-c role={role}"})
        try:
            with application(postgresql_url, clock=clock, engine=engine) as limited:
                beat = ManualBeat(limited)
                clock.advance(MINUTE)
                beat.run_until_idle()
                assert [run.name for run in beat.publisher.sent] == ["good"]
                assert "row-level security" in mine.get("bad").error
        finally:
            engine.dispose()
            execute_ddl(admin, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_missing_right_on_a_table_is_the_fault_of_no_row(postgresql_url, clock):
    with application(postgresql_url, clock=clock) as admin:
        admin.context.prepare()
        role = f"reader_{admin.context.database.engine.url.database}"
        mine = admin.schedules.for_owner("user:42")
        mine.create("n", task="t", trigger=MINUTELY)
        execute_ddl(
            admin,
            f"CREATE ROLE {role}",
            f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}",
            f"REVOKE INSERT ON dynbeat_run FROM {role}",
        )
        engine = create_engine(postgresql_url, connect_args={"options": f"-c role={role}"})
        try:
            with application(postgresql_url, clock=clock, engine=engine) as limited:
                clock.advance(MINUTE)
                with pytest.raises(DBAPIError, match="permission denied"):
                    ManualBeat(limited).run_until_idle()
            assert mine.get("n").error is None
        finally:
            engine.dispose()
            execute_ddl(admin, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def exhaust_stack(*_args, **_given):
    return exhaust_stack()


FAULTS = {
    "no file descriptors": OSError(errno.EMFILE, "Too many open files"),
    "no memory": MemoryError(),
    "no module": ImportError("no module"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_of_the_process_quarantines_no_row_of_a_claim(
    mine, clock, beat, sent, monkeypatch, fault
):
    mine.create("n", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)

    def fail(*_args, **_given):
        raise fault

    with monkeypatch.context() as sick:
        sick.setattr(decisions, "spec_from_row", fail)
        with pytest.raises(type(fault)):
            beat.run_until_idle()
    beat.run_until_idle()

    assert mine.get("n").error is None
    assert len(sent) == 1


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_of_the_process_fails_no_run_of_a_sweep(mine, beat, sent, monkeypatch, fault):
    mine.create("n", task="t", trigger=Every(3_600))
    mine.run_now("n")

    def fail(*_args, **_given):
        raise fault

    with monkeypatch.context() as sick:
        sick.setattr(outgoing_runs, "recorded_run", fail)
        with pytest.raises(type(fault)):
            beat.run_until_idle()
    beat.run_until_idle()

    assert mine.get("n").error is None
    assert len(sent) == 1


def test_a_row_that_needs_too_deep_a_stack_is_quarantined(mine, clock, beat, monkeypatch):
    mine.create("n", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    monkeypatch.setattr(decisions, "spec_from_row", exhaust_stack)

    beat.run_until_idle()

    assert "RecursionError" in mine.get("n").error


def test_a_zone_that_only_a_newer_tz_database_has_is_left_to_a_newer_beat(
    dynbeat, mine, clock, beat, sent, monkeypatch
):
    in_seoul = Cron("* * * * *", timezone="Asia/Seoul")
    mine.create("new", task="t", trigger=in_seoul)
    mine.create("unplanned", task="t", trigger=in_seoul)
    execute(dynbeat, "UPDATE dynbeat_schedule SET next_run_at = NULL WHERE name = 'unplanned'")
    mine.create("old", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    known = settings.zone_names()
    with monkeypatch.context() as older:
        older.setattr(zones, "zone_names", lambda: known - {"Asia/Seoul"})
        zones.load_zone.cache_clear()
        beat.run_until_idle()
        assert names_of(sent) == ["old"]
        assert {name.partition("(")[2] for _, name in left_out(beat)} == {
            "'new' of 'user:42')",
            "'unplanned' of 'user:42')",
        }
        assert beat.tick() > timedelta(seconds=1)
    zones.load_zone.cache_clear()

    assert mine.get("new").error is None
    clock.advance(RETRY_AFTER)
    beat.run_until_idle()
    assert mine.get("unplanned").next_run_at is not None
    assert names_of(sent) == ["new", "old"]


@each_database
def test_an_insert_of_new_rows_skips_duplicates_and_nothing_else(dynbeat, mine, clock, beat):
    if dynbeat.context.database.engine.dialect.name == "sqlite":
        pytest.skip("SQLite adds no constraint to a table")
    mine.create("n", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    beat.run_until_idle()
    (run,) = mine.runs("n")
    schedule_id = beat.publisher.sent[0].schedule_id
    record = {
        "schedule_id": schedule_id,
        "owner": "user:42",
        "name": "n",
        "task": "t",
        "id": "01a1fd56-64e0-7580-b016-9d1ba5548eb0",
        "fire_at": run.fire_at,
        "status": "pending",
        "origin": "schedule",
        "created_at": clock.now(),
        "overdue_at": None,
        "finished_at": None,
        "fire_count": 1,
        "error": None,
    }
    other = {
        **record,
        "id": "01a1fd56-64e0-7580-b016-9d1ba5548eb1",
        "fire_at": run.fire_at + MINUTE,
    }
    database = dynbeat.context.database

    assert database.run(partial(runs.add, rows=[record, other])) == {other["id"]}

    execute_ddl(dynbeat, "ALTER TABLE dynbeat_run ADD CONSTRAINT no_bad CHECK (name <> 'bad')")
    bad = {**other, "id": "01a1fd56-64e0-7580-b016-9d1ba5548eb2", "name": "bad"}
    bad["fire_at"] += MINUTE
    with pytest.raises(DBAPIError, match="no_bad"):
        database.run(partial(runs.add, rows=[bad]))
    long = {**bad, "name": "n" * 300}
    with pytest.raises(DBAPIError):
        database.run(partial(runs.add, rows=[long]))


def test_a_schedule_whose_correction_is_refused_delays_no_other(dynbeat, mine, clock, beat, sent):
    for name in ("bad", "good"):
        mine.create(name, task="t", trigger=Every(3_600))
    clock.advance(timedelta(hours=1))
    beat.run_until_idle()
    for run in sent:
        start(dynbeat, run.run_id)
    refuse(dynbeat, action="UPDATE", table="dynbeat_schedule", when="OLD.name = 'bad'")
    clock.advance(2 * dynbeat.context.settings.node_timeout)
    beat.run_until_idle()

    assert mine.get("good").failing_since is not None
    assert [kind for kind, _ in left_out(beat) if kind == "duty"] == []
