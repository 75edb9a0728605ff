"""Quiet hours of owners: beat sends no run in them, and the calls that set them."""

import threading
from datetime import date, timedelta
from functools import partial

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.orm import Session

from celery_dynbeat import Cron, Every, InvalidArgumentError, Once, QuietHours
from celery_dynbeat.api import owner_clock
from celery_dynbeat.beat.claim import claim
from celery_dynbeat.store import owners
from tests.support.applications import MINUTELY, START, application, execute
from tests.support.suites import each_database

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
#: The clock starts on a Saturday at 09:00 UTC.
DAY = ["09:30-12:00"]
TEN, NOON = START + HOUR, START + 3 * HOUR
HALF_HOURLY = Cron("*/30 * * * *")


def fire_times(sent):
    return [(run.fire_at - START) / MINUTE for run in sent]


def run_until(clock, beat, end, *, step=30 * MINUTE):
    """Let beat pass every half hour, and return what it sent with the minute."""
    found = []
    while clock.now() < end:
        clock.advance(step)
        before = len(beat.publisher.sent)
        beat.run_until_idle()
        minute = (clock.now() - START) / MINUTE
        found += [(minute, at) for at in fire_times(beat.publisher.sent[before:])]
    return found


def test_an_edit_of_the_windows_plans_the_schedules_again_in_its_transaction(
    dynbeat, mine, clock, beat
):
    names = {"in": Cron("0 10 * * *"), "out": Cron("0 13 * * *"), "once": Once(START + HOUR)}
    for name, trigger in names.items():
        mine.create(name, task="t", trigger=trigger)
    before = {row.name: row.next_run_at for row in mine.list()}

    with Session(dynbeat.context.database.engine) as session:
        assert mine.bound(session=session).set_quiet_hours(DAY) == 3
        session.rollback()
    assert {row.name: row.next_run_at for row in mine.list()} == before

    assert mine.set_quiet_hours(DAY) == 3
    assert {row.name: row.next_run_at for row in mine.list()} == {
        "in": NOON,
        "once": NOON,
        "out": START + 4 * HOUR,
    }
    assert mine.set_quiet_hours(DAY) == 0
    assert {row.version for row in mine.list()} == {1}
    clock.advance(2 * HOUR)
    assert mine.clear_quiet_hours() == 3
    # The fire times that waited are due at once.
    assert mine.get("in").next_run_at == mine.get("once").next_run_at == clock.now()
    beat.run_until_idle()
    assert sorted(run.name for run in beat.publisher.sent) == ["in", "once"]


def test_paused_and_finished_schedules_get_the_windows_and_stay_as_they_are(mine, clock, beat):
    mine.create("paused", task="t", trigger=HALF_HOURLY)
    mine.create("finished", task="t", trigger=Once(START + MINUTE))
    clock.advance(MINUTE)
    beat.run_until_idle()
    mine.pause("paused")

    assert mine.set_quiet_hours(DAY) == 2

    assert [mine.get(name).next_run_at for name in ("paused", "finished")] == [None, None]
    clock.advance(HOUR)
    assert mine.resume("paused").next_run_at == NOON


def test_quiet_hours_follow_the_zone_of_the_owner(mine, clock, beat):
    mine.create("n", task="t", trigger=Every(HOUR, anchor=START))
    mine.set_timezone("Asia/Kathmandu")
    # 03:45 to 06:15 in UTC, 09:30 to 12:00 on the clock of the owner.
    mine.set_quiet_hours(DAY)
    assert mine.get("n").next_run_at == START + HOUR

    mine.set_timezone("UTC")
    assert mine.get("n").next_run_at == NOON

    assert run_until(clock, beat, NOON) == [(180, 180)]


def test_each_way_to_make_a_schedule_gives_it_the_quiet_hours(dynbeat, mine):
    mine.set_quiet_hours(DAY)
    zoned = Cron("0 10 * * *", timezone="UTC")
    made = [
        mine.create("create", task="t", trigger=zoned),
        mine.upsert("upsert", task="t", trigger=zoned),
        mine.create("inherits", task="t", trigger=Cron("0 10 * * *")),
    ]
    made += dynbeat.schedules.create_many(
        [{"owner": "user:42", "name": "many", "task": "t", "trigger": zoned}]
    )
    made.append(mine.update("create", trigger=Cron("0 11 * * *")))

    assert {row.next_run_at for row in made} == {NOON}


def test_a_damaged_value_of_the_owner_prevents_no_edit_that_does_not_need_it(dynbeat, mine):
    mine.set_timezone("Asia/Seoul")
    mine.create("n", task="t", trigger=MINUTELY)
    damaged = "UPDATE dynbeat_owner SET quiet_hours = :value"
    execute(dynbeat, damaged, value='{"windows": "x"}')

    assert mine.rename("n", "m").name == "m"
    assert mine.timezone() == "Asia/Seoul"
    assert mine.update("m", trigger=Cron("0 9 * * *")).timezone == "Asia/Seoul"
    for call in (mine.quiet_hours, partial(mine.create, "n", task="t", trigger=MINUTELY)):
        with pytest.raises(InvalidArgumentError, match="set it again"):
            call()
    mine.clear_quiet_hours()
    assert mine.create("n", task="t", trigger=MINUTELY).name == "n"


@pytest.mark.parametrize(
    ("policies", "minutes"),
    [
        ({"catch_up": "latest"}, [None, None, 180]),
        ({"catch_up": "all"}, [180, 180, 180]),
        ({"catch_up": "all", "overlap": "skip"}, [180, None, None]),
        ({"catch_up": "all", "overlap": "buffer_one"}, [180, 180, None]),
    ],
)
def test_a_preview_shows_the_runs_that_the_policies_send(mine, policies, minutes):
    mine.set_quiet_hours(DAY)

    found = mine.preview("0 10,11,12 * * *", "n", count=3, **policies).fire_times

    assert [each.run_at and (each.run_at - START) / MINUTE for each in found] == minutes


@pytest.mark.parametrize("catch_up", ["latest", "all"])
@pytest.mark.parametrize("max_runs", [1, 3])
def test_upcoming_with_max_runs_has_the_runs_that_beat_sends(mine, clock, beat, catch_up, max_runs):
    mine.set_quiet_hours(DAY)
    mine.create("n", task="t", trigger=HALF_HOURLY, catch_up=catch_up, max_runs=max_runs)

    found = mine.upcoming("n", count=20)
    runs = [each for each in found if each.run_at]
    # A run that no worker starts is sent again.
    sent = {at: minute for minute, at in reversed(run_until(clock, beat, NOON + HOUR))}

    assert {
        (each.fire_at - START) / MINUTE: (each.run_at - START) / MINUTE for each in runs
    } == sent
    assert len(sent) == max_runs
    assert mine.get("n").next_run_at is None
    assert found == runs


@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
def test_no_run_waits_until_a_day_that_its_rule_excludes(dynbeat, mine, clock, beat, catch_up):
    dynbeat.calendars.upsert("holidays", dates=[date(2026, 11, 22), date(2026, 11, 23)])
    mine.set_quiet_hours(["22:00-07:00"])
    trigger = Cron("30 23 * * *").excluding(calendar="holidays")
    sent_at = START + timedelta(days=3) - 2 * HOUR

    made = mine.create("n", task="t", trigger=trigger, catch_up=catch_up)

    assert made.next_run_at == sent_at
    (first, _) = mine.upcoming("n", count=2)
    assert (first.fire_at, first.run_at) == (START + 14.5 * HOUR, sent_at)
    assert mine.preview(trigger, "n", count=1).fire_times[0].run_at == sent_at
    sent = run_until(clock, beat, sent_at)
    assert sent == [((sent_at - START) / MINUTE, 14.5 * 60)]
    assert mine.runs(status="skipped").items == ()


def test_a_preview_shows_the_hold_of_its_owner(mine):
    shown = partial(mine.preview, Cron("0 10,11 * * *"), "n", count=2)
    mine.bound(actor="alice").hold(reason="r", until=START + 1.5 * HOUR)

    timed, after = shown().fire_times

    assert (timed.run_at, after.run_at) == (START + 1.5 * HOUR, START + 2 * HOUR)
    assert timed.note == "held by alice (r): sent at 2026-11-21 10:30 UTC"
    assert after.note is None
    missed, _ = shown(catch_up="none").fire_times
    assert missed.run_at is None
    assert missed.note.startswith("held by alice (r): missed: no beat could send it in time")
    mine.bound(actor="alice").hold()
    assert [(each.run_at, each.note) for each in shown().fire_times] == [
        (None, "held by alice")
    ] * 2


def test_the_calls_show_audit_and_export_the_windows(mine):
    mine.set_quiet_hours([QuietHours("22:00", "07:00", days="mon-fri"), "sat,sun 00:00-00:00"])
    mine.bound(actor="alice", reason="asked").set_quiet_hours(DAY)

    (own,) = mine.quiet_hours()
    assert own.to_dict() == {"owner": "user:42", "windows": DAY, "calendar": None}
    change = mine.changes(limit=1).items[0]
    assert (change.action, change.actor, change.reason) == ("set_quiet_hours", "alice", "asked")
    assert change.before["quiet_hours"]["windows"][0] == "mon-fri 22:00-07:00"
    assert change.after["quiet_hours"] == {"windows": DAY}
    assert next(mine.export())["quiet_hours"] == {"windows": DAY}
    mine.clear_quiet_hours()
    assert mine.quiet_hours() == []
    assert mine.changes(limit=1).items[0].after == {"quiet_hours": None}
    mine.clear_quiet_hours()
    assert len(mine.changes()) == 3


def test_windows_that_leave_no_time_with_those_of_everybody_are_refused(sqlite_url, clock):
    with application(sqlite_url, clock=clock, quiet_hours=["08:00-20:00"]) as dynbeat:
        mine = dynbeat.schedules.for_owner("user:42")
        with pytest.raises(InvalidArgumentError, match="with dynbeat_quiet_hours"):
            mine.set_quiet_hours(["20:00-08:00"])
        assert len(mine.quiet_hours()) == 1
        assert mine.set_quiet_hours(["20:00-07:00"]) == 0


def test_quiet_hours_cost_a_claim_no_statement(dynbeat, mine, clock):
    mine.create("n", task="t", trigger=MINUTELY)
    found = []
    event.listen(
        dynbeat.context.database.engine,
        "before_cursor_execute",
        lambda _connection, _cursor, sql, *_: found.append(sql),
    )

    def statements():
        found.clear()
        clock.advance(MINUTE)
        work = partial(claim, now=clock.now(), settings=dynbeat.context.settings)
        assert len(dynbeat.context.database.run(work).outgoing) == 1
        return [*found]

    before = statements()
    dynbeat.schedules.for_owner("other").set_quiet_hours(DAY)
    assert statements() == before
    mine.set_quiet_hours(["22:00-07:00"])
    assert statements() == before


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_schedule_that_is_created_during_a_change_gets_the_windows(request, kind):
    with application(request.getfixturevalue(f"{kind}_url")) as dynbeat:
        dynbeat.context.prepare()
        mine = dynbeat.schedules.for_owner("org:7/a")
        mine.set_quiet_hours(["22:00-23:00"])
        created, changed = threading.Event(), threading.Event()

        def change():
            created.wait(10)
            mine.set_quiet_hours(DAY)
            changed.set()

        thread = threading.Thread(target=change)
        thread.start()
        with Session(dynbeat.context.database.engine) as session:
            mine.bound(session=session).create("n", task="t", trigger=Cron("0 10 * * *"))
            created.set()
            assert not changed.wait(0.3)
            session.commit()
        thread.join(10)

        assert mine.get("n").next_run_at == NOON


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_schedule_that_is_renamed_during_a_change_gets_the_windows(request, kind, monkeypatch):
    with application(request.getfixturevalue(f"{kind}_url")) as dynbeat:
        dynbeat.context.prepare()
        mine = dynbeat.schedules.for_owner("org:7/a")
        mine.set_quiet_hours(["22:00-23:00"])
        for name in ("m", "z"):
            mine.create(name, task="t", trigger=Cron("0 10 * * *", timezone="UTC"))
        renamed = threading.Event()

        def rename():
            mine.rename("z", "a")
            renamed.set()

        thread = threading.Thread(target=rename)
        lock_schedules = owners.lock_schedules

        def lock_after_rename(session, *, after, **given):
            # After the first batch, which has "m".
            if after == "m":
                thread.start()
                renamed.wait(0.3)
            return lock_schedules(session, after=after, **given)

        monkeypatch.setattr(owner_clock, "BATCH_SIZE", 1)
        monkeypatch.setattr(owners, "lock_schedules", lock_after_rename)
        mine.set_quiet_hours(DAY)
        thread.join(10)

        assert {row.name: row.next_run_at for row in mine.list()} == {"a": NOON, "m": NOON}


@pytest.fixture
def older(dynbeat):
    """Give a session of the application, whose snapshot can be older than a change."""
    if dynbeat.context.database.engine.dialect.name == "sqlite":
        pytest.skip("a change waits for the snapshot")
    engine = create_engine(dynbeat.context.database.engine.url)
    with Session(engine) as session:
        session.execute(text("SELECT count(*) FROM dynbeat_schedule")).all()
        yield session
    engine.dispose()


@each_database
def test_a_change_in_a_session_with_an_older_snapshot_writes_its_windows(mine, older):
    mine.set_quiet_hours(["22:00-07:00"])
    mine.set_quiet_hours(["23:00-07:00"])

    mine.bound(session=older).set_quiet_hours(["22:00-07:00"])
    older.commit()

    assert [str(window) for window in mine.quiet_hours()[0].windows] == ["22:00-07:00"]
