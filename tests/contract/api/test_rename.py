"""rename(): the same schedule under another name."""

import threading
from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from celery_dynbeat import (
    AnyOf,
    Cron,
    Every,
    InvalidArgumentError,
    NotFoundError,
    ScheduleExistsError,
)
from celery_dynbeat.api.reading import schedule_of
from celery_dynbeat.beat.config_sync import sync
from celery_dynbeat.db.models import Alert
from tests.support.applications import MINUTELY, START, instants
from tests.support.suites import each_database
from tests.support.worker_stub import WorkerStub

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


def test_a_rename_changes_the_name_only(mine, clock):
    before = mine.create("old", task="t", trigger=MINUTELY, kwargs={"a": 1}, tags=["x"])
    clock.advance(MINUTE / 2)

    after = mine.rename("old", "new")

    changed = {key for key, value in before.to_dict().items() if after.to_dict()[key] != value}
    assert changed == {"name", "version", "updated_at"}
    assert (after.id, after.version, mine.get("new")) == (before.id, 2, after)
    with pytest.raises(NotFoundError):
        mine.get("old")


def test_the_history_and_the_messages_in_flight_stay(dynbeat, mine, clock, beat, sent):
    mine.create("old", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    beat.run_until_idle()
    mine.rename("old", "new")
    clock.advance(MINUTE)
    beat.run_until_idle()

    runs = mine.runs("new")
    assert [(run.name, run.fire_at) for run in runs] == [
        ("new", START + 2 * MINUTE),
        ("old", START + MINUTE),
    ]
    assert all(WorkerStub(dynbeat).start(run) for run in sent)
    assert [run.status for run in mine.runs("new")] == ["running", "running"]


def test_runs_of_the_old_name_are_found_until_a_schedule_has_it(mine, clock, beat):
    mine.create("old", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    beat.run_until_idle()
    mine.rename("old", "new")
    assert len(mine.runs("old")) == 1

    mine.create("old", task="t", trigger=MINUTELY)

    assert (len(mine.runs("old")), len(mine.runs("new"))) == (0, 1)


@pytest.mark.parametrize(
    "trigger",
    [
        Cron("H H * * *"),
        Cron("H/15 H(0-7),H * * H(mon-fri)", timezone="Asia/Seoul"),
        AnyOf(Cron("H 9 * * *", timezone="Europe/Berlin"), Cron("H H 1 * *")),
        AnyOf(Cron("0 9 * * *", timezone="UTC"), Cron("H H H * *", timezone="UTC")),
        Cron("H H * * *").excluding(Cron("* * 1 * *")),
    ],
    ids=lambda trigger: trigger.spec,
)
def test_an_h_keeps_its_fire_times(mine, trigger):
    mine.set_timezone("America/New_York")
    before = mine.create("old", task="t", trigger=trigger)
    fire_times = instants(mine.upcoming("old", count=50))

    after = mine.rename("old", "new")

    assert instants(mine.upcoming("new", count=50)) == fire_times
    assert (after.next_run_at, after.timezone) == (before.next_run_at, before.timezone)
    assert after.inherits_timezone == before.inherits_timezone
    assert after.given_trigger == before.given_trigger
    mine.set_timezone("Asia/Seoul")
    mine.create("other", task="t", trigger=trigger)
    assert mine.get("new").timezone == mine.get("other").timezone


def test_a_taken_name_is_refused_and_nothing_changes(dynbeat, mine):
    mine.create("a", task="t", trigger="H H * * *")
    mine.create("b", task="t", trigger=MINUTELY)
    dynbeat.schedules.for_owner("user:7").create("c", task="t", trigger=MINUTELY)
    before = list(mine.list())

    with Session(dynbeat.context.database.engine) as session:
        with pytest.raises(ScheduleExistsError) as raised:
            mine.bound(session=session).rename("a", "b")
        assert (raised.value.owner, raised.value.name) == ("user:42", "b")
        session.commit()

    assert list(mine.list()) == before
    assert mine.rename("a", "c").name == "c"


@each_database
def test_of_two_renames_to_one_name_one_is_refused(mine):
    for name in "ab":
        mine.create(name, task="t", trigger=MINUTELY)
    refused = []

    def rename(name):
        try:
            mine.rename(name, "c")
        except ScheduleExistsError:
            refused.append(name)

    threads = [threading.Thread(target=rename, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [each.name for each in mine.list()] == sorted(["c", *refused])
    assert len(refused) == 1


def test_a_schedule_of_beat_schedule_keeps_its_name(dynbeat):
    dynbeat.app.conf.beat_schedule = {"a": {"task": "t", "schedule": 60}}
    sync(dynbeat.context)

    with pytest.raises(InvalidArgumentError, match="entry in beat_schedule"):
        dynbeat.schedules.for_owner("").rename("a", "b")


def test_the_change_is_found_under_both_names(mine):
    mine.create("old", task="t", trigger="H H * * *")
    mine.bound(actor="ann", reason="why").rename("old", "new")

    for name in ("old", "new"):
        change = mine.changes(name)[0]
        assert (change.action, change.actor, change.reason) == ("rename", "ann", "why")
        assert (change.before["name"], change.after["name"]) == ("old", "new")
        assert (change.before["version"], change.after["version"]) == (1, 2)
        assert "trigger" not in change.before


def test_alerts_have_the_new_name(dynbeat, mine, clock):
    mine.create("old", task="t", trigger=Every(60, anchor=START - DAY))
    opened = {"opened_at": clock.now(), "task": "t", "cause": "x"}
    with Session(dynbeat.context.database.engine) as session, session.begin():
        alert = {"schedule_id": mine.get("old").id, "kind": "failing", **opened}
        session.add(Alert(owner=mine.owner, name="old", **alert))

    mine.rename("old", "new")

    assert [each.schedule for each in mine.alerts()] == ["new"]


def test_the_schedule_of_a_run_is_found_after_a_rename(dynbeat, mine, clock, beat):
    mine.create("other", task="t", trigger=MINUTELY)
    mine.create("old", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    beat.run_until_idle()
    (run,) = mine.runs("old")
    mine.rename("old", "new")

    schedule = schedule_of(dynbeat.context, run)

    assert schedule == mine.get("new")
    mine.delete("new")
    assert schedule_of(dynbeat.context, mine.get_run(run.id)) is None


def test_update_names_the_call_that_renames(mine):
    mine.create("n", task="t", trigger=MINUTELY)

    with pytest.raises(InvalidArgumentError, match=r"call rename\('n', 'm'\)"):
        mine.update("n", name="m")
