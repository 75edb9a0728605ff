"""Each edit writes one change, in its own transaction."""

from datetime import timedelta

import pytest

from celery_dynbeat import Cron
from celery_dynbeat.beat.config_sync import sync
from tests.support.applications import MINUTELY, START, execute
from tests.support.suites import each_database


def create(mine, name="n", **given):
    return mine.create(name, task="t", trigger=MINUTELY, **given)


def newest(mine, name="n"):
    return mine.changes(name)[0]


def actions(page):
    return [change.action for change in page]


def test_a_create_has_the_given_fields_as_after(mine):
    start_at = START + timedelta(hours=1)
    made = create(mine, kwargs={"user": 42}, queue="mail", expires_after=300, start_at=start_at)

    change = newest(mine)
    assert (change.action, change.owner, change.name) == ("create", "user:42", "n")
    assert (change.actor, change.reason, change.before) == ("", "", None)
    assert change.changed_at == made.created_at
    assert change.after == {
        "task": "t",
        "trigger": made.trigger.to_json(),
        "kwargs": {"user": 42},
        "options": {"queue": "mail"},
        "enabled": True,
        "expires_after": 300.0,
        "start_at": start_at.isoformat(),
        "version": 1,
    }


def test_an_update_has_only_the_fields_that_differ(mine):
    create(mine, description="old")
    mine.update("n", trigger=Cron("0 9 * * *", timezone="Asia/Seoul"), description="new", window=5)

    change = newest(mine)
    assert change.action == "update"
    assert change.before == {
        "trigger": MINUTELY.to_json(),
        "description": "old",
        "window": None,
        "version": 1,
    }
    assert change.after == {
        "trigger": Cron("0 9 * * *", timezone="Asia/Seoul").to_json(),
        "description": "new",
        "window": 5.0,
        "version": 2,
    }


def test_each_change_names_the_actor_and_the_reason_of_its_scope(dynbeat):
    by = {"actor": "ann", "reason": "ticket 12"}
    mine = dynbeat.schedules.for_owner("user:42", **by)
    create(mine)
    mine.create_many([{"name": "m", "task": "t", "trigger": MINUTELY}])
    mine.upsert("m", task="u", trigger=MINUTELY)
    mine.update("n", tags=["red"])
    mine.pause("n")
    mine.resume("n")
    fire_time = mine.upcoming("n")[0].fire_at
    mine.skip("n", fire_time)
    mine.unskip("n", fire_time)
    mine.set_timezone("Asia/Seoul")
    mine.cancel_run(mine.run_now("n").id)
    mine.run_now("n")
    mine.cancel_runs()
    mine.hold()
    mine.release()
    mine.pause_many(everything=True)
    mine.resume_many(everything=True)
    mine.update_many({"tags": ["x"]}, everything=True)
    mine.delete_many(tag="y")
    mine.rename("n", "o")
    mine.delete("o")
    dynbeat.schedules.bound(**by).delete_owner(mine.owner)

    changes = mine.changes()
    assert {(each.actor, each.reason) for each in changes} == {("ann", "ticket 12")}
    assert {each.action for each in changes} >= {
        *("create", "update", "pause", "resume", "skip", "unskip", "set_timezone", "run_now"),
        *("cancel", "hold", "release", "delete", "rename"),
    }


@each_database
def test_changes_until_an_instant(mine, clock):
    create(mine)
    clock.advance(60)
    mine.pause("n")

    assert [each.action for each in mine.changes(until=clock.now())] == ["create"]
    assert [each.action for each in mine.changes(since=clock.now())] == ["pause"]


def test_a_delete_has_the_old_fields_and_stays_readable(mine):
    create(mine, tags=["red"])
    mine.delete("n")

    change = newest(mine)
    assert (change.action, change.after) == ("delete", None)
    assert change.before["tags"] == ["red"]
    assert change.before["trigger"] == MINUTELY.to_json()


@each_database
def test_pages_are_complete_and_newest_first(dynbeat, mine, clock):
    for number in range(25):
        create(mine, f"n{number}")
        clock.advance(number % 3)

    for read in (mine.changes, dynbeat.schedules.changes):
        seen, after = [], None
        while not seen or after:
            page = read(limit=4, after=after)
            seen.extend(page)
            after = page.cursor
        assert [change.name for change in seen] == [f"n{i}" for i in reversed(range(25))]


@each_database
def test_filters_on_actor_action_and_time(dynbeat, mine, clock):
    create(mine)
    clock.advance(60)
    with dynbeat.acting(actor="alice"):
        mine.pause("n")
    clock.advance(60)
    mine.resume("n")

    everywhere = dynbeat.schedules
    assert actions(everywhere.changes(actor="alice")) == ["pause"]
    assert actions(mine.changes(actor="alice")) == ["pause"]
    assert actions(everywhere.changes(actor="")) == ["resume", "create"]
    assert actions(everywhere.changes(action="create")) == ["create"]
    assert actions(mine.changes("n", since=START + timedelta(seconds=60))) == ["resume", "pause"]
    assert actions(everywhere.changes(since=START + timedelta(seconds=61))) == ["resume"]


@pytest.mark.parametrize("column", ["args", "kwargs", "options"])
@each_database
def test_an_owner_with_numbers_that_json_lacks_can_be_corrected_and_deleted(dynbeat, mine, column):
    create(mine)
    create(mine, "m")
    value = "[1e400]" if column == "args" else '{"priority": 1e400}'
    execute(dynbeat, f"UPDATE dynbeat_schedule SET {column} = :value", value=value)

    mine.update("n", **{column: [] if column == "args" else {}})
    assert isinstance(newest(mine).before[column], str)
    assert dynbeat.schedules.delete_owner("user:42") == 2


def test_without_the_setting_nothing_is_written(limited):
    mine = limited(audit_retention=0).schedules.for_owner("user:42")
    create(mine)
    mine.pause("n")
    mine.delete("n")

    assert mine.changes() == []


def test_beat_schedule_is_an_actor(limited):
    dynbeat = limited()
    dynbeat.app.conf.beat_schedule = {"entry": {"task": "t", "schedule": 60.0}}
    sync(dynbeat.context)
    dynbeat.app.conf.beat_schedule = {"entry": {"task": "t", "schedule": "nonsense"}}
    sync(dynbeat.context)
    dynbeat.app.conf.beat_schedule = {}
    sync(dynbeat.context)

    page = dynbeat.schedules.for_owner("").changes("entry")
    assert actions(page) == ["delete", "pause", "create"]
    assert {change.actor for change in page} == {"beat_schedule"}
